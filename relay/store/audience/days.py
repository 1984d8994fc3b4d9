"""One UTC day's audience of a source and step, whose people are compressed bitmaps.

Bitmaps, because people of several days count once: they are joined, which sums cannot be.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import msgspec
from pyroaring import BitMap, BitMap64

from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.audience.sets import (
    NUMBER_MAX,
    VIDEO_BITS,
    Counts,
    Damaged,
    pair,
    people_of,
    slots_of,
    videos_of,
    viewers_of,
    with_checksum,
    without_checksum,
)

SLOT_MS = HOUR_MS // 2
"""The finest time of a day's audience: nearly every time zone is off UTC by a multiple of it."""

WEEK_MS = 7 * DAY_MS

COLUMNS = "people, half_hours, viewers, videos"
"""Names of the columns of sets."""


class Key(NamedTuple):
    """Whose audience of which day."""

    day_ms: int
    source: str
    step: str


class View(NamedTuple):
    """A row of `audience`, with small numbers."""

    at_ms: int
    source: str
    step: str
    video: int
    """0 for none."""
    person: int | None

    @property
    def key(self) -> Key:
        return Key(self.at_ms - self.at_ms % DAY_MS, self.source, self.step)

    @property
    def slot(self) -> int:
        return self.at_ms % DAY_MS // SLOT_MS


class Slot(msgspec.Struct):
    """Half an hour of a day."""

    events: int = 0
    anonymous: int = 0
    people: BitMap = msgspec.field(default_factory=BitMap)


class Day(msgspec.Struct):
    """People and events of a day."""

    people: BitMap = msgspec.field(default_factory=BitMap)
    slots: dict[int, Slot] = msgspec.field(default_factory=dict)
    """By their position in the day."""
    viewers: BitMap64 = msgspec.field(default_factory=BitMap64)
    """Pairs of video and person."""
    videos: dict[int, Counts] = msgspec.field(default_factory=dict)

    @classmethod
    def parse(cls, people: bytes, slots: bytes, viewers: bytes, videos: bytes) -> Self:
        """Read the columns; raises Damaged."""
        return cls(
            people_of(people),
            {at: Slot(*counts, BitMap.deserialize(who)) for at, counts, who in slots_of(slots)},
            viewers_of(viewers),
            videos_of(videos),
        )

    def columns(self) -> tuple[int, int, bytes, bytes, bytes, bytes]:
        """Return events, anonymous ones, and what `parse` reads."""
        slots = {
            at: (slot.events, slot.anonymous, slot.people.serialize())
            for at, slot in self.slots.items()
        }
        blobs = (
            self.people.serialize(),
            msgspec.msgpack.encode(slots),
            self.viewers.serialize(),
            msgspec.msgpack.encode(self.videos),
        )
        people, half_hours, viewers, videos = map(with_checksum, blobs)
        return (*self.counts(), people, half_hours, viewers, videos)

    def counts(self) -> Counts:
        """Return the numbers of all events and of those without an address."""
        counts = self.videos.values()
        return sum(events for events, _ in counts), sum(anonymous for _, anonymous in counts)

    def add(self, views: Sequence[View]) -> None:
        """Add views of this day, source and step."""
        self.add_pairs(
            [pair(view.video, view.person) for view in views if view.person is not None],
            [view.video for view in views if view.person is None],
        )
        by_slot: defaultdict[int, list[int | None]] = defaultdict(list)
        for view in views:
            by_slot[view.at_ms % DAY_MS // SLOT_MS].append(view.person)
        for at, people in by_slot.items():
            known = [person for person in people if person is not None]
            self._add_slot(at, Slot(len(people), len(people) - len(known), BitMap(known)))

    def add_pairs(self, pairs: Sequence[int], anonymous: Sequence[int]) -> None:
        """Add views without their half hours: pairs, and the videos of those without an address."""
        self.people.update([each & NUMBER_MAX for each in pairs])
        self.viewers.update(pairs)
        for video, events in Counter([each >> VIDEO_BITS for each in pairs]).items():
            self._count(video, events, 0)
        for video, events in Counter(anonymous).items():
            self._count(video, events, events)

    def _count(self, video: int, events: int, anonymous: int) -> None:
        before = self.videos.get(video, (0, 0))
        self.videos[video] = before[0] + events, before[1] + anonymous

    def _add_slot(self, at: int, other: Slot) -> None:
        slot = self.slots.setdefault(at, Slot())
        slot.events += other.events
        slot.anonymous += other.anonymous
        slot.people |= other.people

    def merge(self, other: "Day") -> None:
        """Add all of another one."""
        self.people |= other.people
        self.viewers |= other.viewers
        for at, slot in other.slots.items():
            self._add_slot(at, slot)
        for video, counts in other.videos.items():
            self._count(video, *counts)

    def remove(self, view: View) -> None:
        """Remove one view, and its person from the day: all of that person's views go.

        Raises Damaged if the view is not in it.
        """
        if view.slot not in self.slots or view.video not in self.videos:
            raise Damaged
        slot = self.slots[view.slot]
        slot.events -= 1
        events, anonymous = self.videos.pop(view.video)
        if events > 1:
            self.videos[view.video] = events - 1, anonymous
        if view.person is not None:
            slot.people.discard(view.person)
            self.people.discard(view.person)
            self.viewers.discard(pair(view.video, view.person))

    def restore(self, view: View) -> None:
        """Add the person of a view again, after another view of the same person was removed.

        Raises Damaged if the view is not in it.
        """
        if view.slot not in self.slots:
            raise Damaged
        if view.person is not None:
            self.slots[view.slot].people.add(view.person)
            self.people.add(view.person)
            self.viewers.add(pair(view.video, view.person))


def days_of(views: Iterable[View]) -> dict[Key, Day]:
    """Count views by day, source and step."""
    by_key: defaultdict[Key, list[View]] = defaultdict(list)
    for view in views:
        by_key[view.key].append(view)
    days = {key: Day() for key in by_key}
    for key, day in days.items():
        day.add(by_key[key])
    return days


def week_of(day: Key) -> Key:
    """Return the week of a day, by its first day."""
    return day._replace(day_ms=day.day_ms - day.day_ms % WEEK_MS)


def damaged(rows: Iterable[tuple[Any, ...]]) -> tuple[str, ...]:
    """Return a fault for each damaged day or week, with the next step.

    A row has `on` or `in the week from`, the first day, the source, and the columns of sets.
    """
    return tuple(
        f"the audience of source {source} {when} {_date(day_ms)}: {_ADVICE}"
        for when, day_ms, source, *blobs in rows
        if _is_damaged(*blobs)
    )


def _date(day_ms: int) -> str:
    return datetime.fromtimestamp(day_ms / 1000, UTC).date().isoformat()


_ADVICE = (
    "the stored counts are damaged; look at just this time on the page's Audience, in UTC, and all "
    "are made anew from the rows"
)


def _is_damaged(*blobs: bytes) -> bool:
    try:
        for blob in blobs:
            without_checksum(blob)
    except Damaged:
        return True
    return False
