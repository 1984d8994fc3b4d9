"""Counts of the funnel by video, from pairs of video and person."""

from collections import defaultdict
from collections.abc import Mapping

from pyroaring import BitMap64

from relay.store.audience import sets
from relay.store.audience.counts import Counts, Steps
from relay.store.audience.unions import Part, PeopleUnions


class Videos:
    """Collects parts of the audience with their videos."""

    def __init__(self) -> None:
        self._total = PeopleUnions()
        self._pairs: defaultdict[str, list[BitMap64]] = defaultdict(list)
        self._events: defaultdict[str, list[Mapping[int, sets.Counts]]] = defaultdict(list)

    def add(self, part: Part, pairs: BitMap64, events: Mapping[int, sets.Counts]) -> None:
        self._total.add(None, part)
        self._pairs[part.step].append(pairs)
        self._events[part.step].append(events)

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
