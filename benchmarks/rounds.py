"""Measurements that take turns, so that what else the machine does hits all of them."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import NamedTuple, Self

from benchmarks import rig


class Rounds(NamedTuple):
    """Figures of each round, by name."""

    found: Mapping[str, list[float]]

    @classmethod
    def take(cls, turns: Mapping[str, Callable[[], float]], rounds: int) -> Self:
        found: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, measure in turns.items():
                found[name].append(measure())
        return cls(found)

    def print(self, unit: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Print the medians, and of pairs the ratio to the second within each round."""
        rig.table(
            [
                ("", unit, "from", "to"),
                *((name, *_spread(values, ".0f")) for name, values in self.found.items()),
            ]
        )
        rig.table([("", "against", "ratio", "from", "to"), *(self._ratio(*pair) for pair in pairs)])

    def _ratio(self, name: str, base: str) -> tuple[str, ...]:
        pairs = zip(self.found[name], self.found[base], strict=True)
        return (name, base, *_spread([one / other for one, other in pairs], ".2f"))


def _spread(values: list[float], form: str) -> tuple[str, str, str]:
    return f"{median(values):{form}}", f"{min(values):{form}}", f"{max(values):{form}}"
