"""Counts of the audience by group and step, before they are ranked and named.

Sets of people are joined before they are counted, so that each person counts once.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import msgspec
from pyroaring import BitMap, BitMap64

from relay.store.audience import sets

Steps = Mapping[str, tuple[int, int, int]]
"""By step: people, events, and events without an address."""


class Counts(msgspec.Struct, frozen=True):
    """The groups of a question; one without an event is not among them."""

    most: Mapping[Any, int]
    """People of each group, in the step with the most of them."""
    steps: Callable[[Any], Steps]
    """Return the counts of one group."""
    total: Steps
    """Counts over all groups, with each person once."""

    @classmethod
    def of(cls, groups: Mapping[Any, Steps], total: Steps) -> Self:
        """Take groups whose counts are all known."""
        most = {
            key: max((people for people, _, _ in steps.values()), default=0)
            for key, steps in groups.items()
        }
        return cls(most, groups.__getitem__, total)

    def ranked(self) -> list[Any]:
        """Return the groups with the most people first."""
        return sorted(self.most, key=lambda key: (-self.most[key], str(key)))


class GroupSet(NamedTuple):
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
    """Collects sets; those of one group are either all numbers or all pairs."""

    def __init__(self) -> None:
        self._groups: defaultdict[Any, _Unions] = defaultdict(lambda: defaultdict(_Union))

    def add(self, group: Any, some: GroupSet) -> None:
        if some.events:
            union = self._groups[group][some.step]
            union.people.append(some.people)
            union.events += some.events
            union.anonymous += some.anonymous

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


class VideoUnions:
    """Collects sets with their pairs of video and person; each video is a group."""

    def __init__(self) -> None:
        self._total = PeopleUnions()
        self._pairs: defaultdict[str, list[BitMap64]] = defaultdict(list)
        self._events: defaultdict[str, list[Mapping[int, sets.Counts]]] = defaultdict(list)

    def add(self, some: GroupSet, pairs: BitMap64, events: Mapping[int, sets.Counts]) -> None:
        self._total.add(None, some)
        self._pairs[some.step].append(pairs)
        self._events[some.step].append(events)

    def counts(self) -> Counts:
        people = {
            step: sets.by_video(BitMap64.union(*pairs)) for step, pairs in self._pairs.items()
        }
        seen = set[int]().union(*(each for parts in self._events.values() for each in parts))
        most = {
            video or None: max(of_step.get(video, 0) for of_step in people.values())
            for video in seen
        }

        # Few videos are shown, and each is in many days.
        def steps(video: int | None) -> Steps:
            number = video or 0
            of_video = {}
            for step, parts in self._events.items():
                counts = [part[number] for part in parts if number in part]
                if counts:
                    events, anonymous = map(sum, zip(*counts, strict=True))
                    of_video[step] = people[step].get(number, 0), events, anonymous
            return of_video

        return Counts(most, steps, self._total.counts().total)
