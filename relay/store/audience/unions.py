"""Sets of people by group and step, which are joined before they are counted."""

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
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


class _Union(msgspec.Struct):
    people: list[BitMap | BitMap64] = msgspec.field(default_factory=list)
    events: int = 0
    anonymous: int = 0

    def counts(self) -> tuple[int, int, int]:
        bitmap: Any = type(self.people[0])
        return len(bitmap.union(*self.people)), self.events, self.anonymous


_Unions = defaultdict[str, _Union]


class PeopleUnions:
    """Collects parts; those of one group are either all numbers or all pairs."""

    def __init__(self) -> None:
        self._groups: defaultdict[Any, _Unions] = defaultdict(lambda: defaultdict(_Union))

    def add(self, group: Any, part: Part) -> None:
        if part.events:
            union = self._groups[group][part.step]
            union.people.append(part.people)
            union.events += part.events
            union.anonymous += part.anonymous

    def counts(self) -> Counts:
        groups = {group: _counted(unions) for group, unions in self._groups.items()}
        return Counts.of(groups, self._total())

    def _total(self) -> Steps:
        steps: _Unions = defaultdict(_Union)
        for unions in self._groups.values():
            for step, union in unions.items():
                steps[step].people += union.people
                steps[step].events += union.events
                steps[step].anonymous += union.anonymous
        return _counted(steps)


def _counted(unions: _Unions) -> Steps:
    return {step: union.counts() for step, union in unions.items()}
