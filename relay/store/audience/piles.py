"""Sets of people by group and step, which are joined before they are counted."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyroaring import BitMap, BitMap64

from relay.store.audience.counts import Counts, Steps


class Part(NamedTuple):
    """Some of the audience of one source and step, from the same group."""

    at_ms: int
    """A time in it."""
    source: str
    step: str
    people: BitMap | BitMap64
    """Numbers, or pairs of one video and numbers."""
    events: int
    anonymous: int


@dataclass(slots=True)
class _Pile:
    people: list[BitMap | BitMap64] = field(default_factory=list)
    events: int = 0
    anonymous: int = 0

    def counts(self) -> tuple[int, int, int]:
        bitmap: Any = type(self.people[0])
        return len(bitmap.union(*self.people)), self.events, self.anonymous


_Piles = defaultdict[str, _Pile]


class Piles:
    """Collects parts; those of one group are either all numbers or all pairs."""

    def __init__(self) -> None:
        self._groups: defaultdict[Any, _Piles] = defaultdict(lambda: defaultdict(_Pile))

    def add(self, group: Any, part: Part) -> None:
        if part.events:
            pile = self._groups[group][part.step]
            pile.people.append(part.people)
            pile.events += part.events
            pile.anonymous += part.anonymous

    def counts(self) -> Counts:
        groups = {group: _counted(piles) for group, piles in self._groups.items()}
        return Counts.of(groups, self._total())

    def _total(self) -> Steps:
        steps: _Piles = defaultdict(_Pile)
        for piles in self._groups.values():
            for step, pile in piles.items():
                steps[step].people += pile.people
                steps[step].events += pile.events
                steps[step].anonymous += pile.anonymous
        return _counted(steps)


def _counted(piles: _Piles) -> Steps:
    return {step: pile.counts() for step, pile in piles.items()}
