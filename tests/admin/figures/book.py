"""What several places say of the same figures, and where they differ."""

from collections.abc import Iterator
from dataclasses import dataclass

from relay.core.units import duration, number, relative

Figure = tuple[str, ...]

STEP_MS = 50
"""Below the unit of any age, so that each that could be read in a time is tried."""


@dataclass(frozen=True)
class Moment:
    """A time in milliseconds since the epoch; None if there is none."""

    ms: int | None


@dataclass(frozen=True)
class Age:
    """A time as people read it, or how long it is ago, and when it was read."""

    text: str
    from_ms: int
    to_ms: int

    def is_of(self, moment: Moment) -> bool:
        if moment.ms is None:
            return self.text in ("\N{EN DASH}", "-", "")
        read_ms = {*range(self.from_ms, self.to_ms, STEP_MS), self.to_ms}
        ages = {relative(moment.ms, at_ms) for at_ms in read_ms}
        return self.text in ages | {duration(at_ms - moment.ms) for at_ms in read_ms}


Said = str | Moment | Age


class Book:
    """Collects what each place says."""

    def __init__(self) -> None:
        self._said: dict[Figure, dict[str, list[Said]]] = {}

    def say(self, place: str, figure: Figure, said: Said | float | None) -> None:
        """Note a figure; a plain number is written as people read it."""
        if said is None:
            said = "?"
        elif isinstance(said, int | float):
            said = number(said)
        self._said.setdefault(figure, {}).setdefault(place, []).append(said)

    @property
    def figures(self) -> dict[Figure, set[str]]:
        """The figures with the places that say them."""
        return {figure: set(of) for figure, of in self._said.items()}

    def differences(self) -> list[str]:
        """Describe each figure of which two places say different things."""
        return [
            f"{' '.join(figure)}: " + ", ".join(f"{place} {_text(said)}" for place, said in found)
            for figure, of in sorted(self._said.items())
            if not _agree(found := [(place, each) for place, said in of.items() for each in said])
        ]


def _agree(found: list[tuple[str, Said]]) -> bool:
    texts = {said for _, said in found if isinstance(said, str)}
    moments = {said for _, said in found if isinstance(said, Moment)}
    if len(texts) + len(moments) > 1:
        return False
    return all(each.is_of(moment) for each in _ages(found) for moment in moments)


def _ages(found: list[tuple[str, Said]]) -> Iterator[Age]:
    return (said for _, said in found if isinstance(said, Age))


def _text(said: Said) -> str:
    match said:
        case Moment(ms):
            return f"@{ms}"
        case Age(text):
            return repr(text)
    return said
