"""The audience by day: made of the rows of `audience`, many at once, and kept right by erasures.

It is made behind them, while no event waits to be counted, because a day's set is written anew each
time.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from relay.store.audience.days import Day, Key, View, days_of, week_of
from relay.store.audience.sets import Damaged
from relay.store.audience.writes import AudienceWrites

BATCH_MIN, BATCH_MAX = 1000, 20_000
"""Rows per step. A step writes the whole day anew, however few rows it adds."""

DAY_SHARE = 32
"""Fraction of the newest day's events, 1 in this many, that a step waits for."""

NUMBERED = 500
"""New people per transaction."""

PART_ROWS = 250
PART_PAUSE_S = 0.001
"""Rows read and counted at a time, and the pause between: counting them holds Python's lock for
2 ms, and acknowledgements need it; other reads need the connection."""

DAYS_MAX = 100
"""Days, sources and steps that end a batch, because all are written in one transaction."""

Part = tuple[int, Mapping[Key, Day]]
"""The last event of some rows, and their days."""


class Counted(msgspec.Struct, frozen=True):
    """Days of the rows `after` one event up to another."""

    after: int
    upto: int
    days: Mapping[Key, Day]


class Batch(msgspec.Struct, frozen=True):
    """The next rows, `after` one event up to another."""

    after: int
    upto: int
    new_people: Sequence[int]

    def numberings(self) -> Iterator[Sequence[int]]:
        """Yield the new people, as many at a time as one transaction takes."""
        for start in range(0, len(self.new_people), NUMBERED):
            yield self.new_people[start : start + NUMBERED]

    async def count(
        self, read: Callable[[Callable[[AudienceWrites], Part]], Awaitable[Part]]
    ) -> Counted:
        """Count them, once all people have numbers; each part is read by a call of its own."""
        days: defaultdict[Key, Day] = defaultdict(Day)
        upto = self.after
        while upto < self.upto and len(days) < DAYS_MAX:
            upto, part = await read(partial(self._part, after=upto))
            for key, day in part.items():
                days[key].merge(day)
            await asyncio.sleep(PART_PAUSE_S)
        return Counted(self.after, upto, days)

    def _part(self, tables: AudienceWrites, after: int) -> Part:
        _, last = tables.next_rows(after, PART_ROWS)
        upto = self.upto if last is None else min(last, self.upto)
        return upto, days_of(tables.views(after, upto))


def next_batch(tables: AudienceWrites) -> Batch | None:
    """Return the next rows to add; None while there are too few."""
    after = tables.rolled_to()
    count, upto = tables.next_rows(after, BATCH_MAX)
    enough = min(max(BATCH_MIN, tables.newest_day_events() // DAY_SHARE), BATCH_MAX)
    if upto is None or count < enough:
        return None
    return Batch(after, upto, tables.new_people(after, upto))


def add(tables: AudienceWrites, counted: Counted) -> None:
    """Add rows to the stored days, unless others were added, or all begun again, since the read."""
    if tables.rolled_to() != counted.after:
        return
    try:
        stored = _load(tables, counted.days)
    except Damaged:
        reset(tables)
        return
    for key, day in counted.days.items():
        stored[key].merge(day)
    _save(tables, stored)
    tables.set_rolled_to(counted.upto)


def store_week(tables: AudienceWrites, week: Key) -> None:
    """Join the days of a week."""
    joined = Day()
    try:
        for row in tables.days_of_week(week):
            joined.merge(Day.parse(*row))
    except Damaged:
        reset(tables)
        return
    tables.save_week(week, joined.columns())


def forget_views(tables: AudienceWrites, events: Sequence[int]) -> None:
    """Remove views from their days, before their rows go with all others of the same people."""
    _change_days(tables, gone=tables.rolled_up(events))


def forget_person(tables: AudienceWrites, person: int) -> None:
    """Remove the person's number, unless the person has returned since the rows were removed.

    The rows of a return stay, but days have lost the person with the removed rows.
    """
    views = list(tables.views_of(person))
    _change_days(tables, back=views)
    if not views:
        tables.delete_viewer(person)


def uncount(tables: AudienceWrites, events: Sequence[int]) -> None:
    """Remove views from the audience and from its days, where the same people's others stay."""
    gone = list(tables.rolled_up(events))
    tables.delete_views(events)
    people: defaultdict[Key, set[int]] = defaultdict(set)
    for view in gone:
        if view.person is not None:
            people[view.key].add(view.person)
    back = [view for key, them in people.items() for view in tables.views_on(key, sorted(them))]
    _change_days(tables, gone=gone, back=back)


def _change_days(
    tables: AudienceWrites, *, gone: Iterable[View] = (), back: Iterable[View] = ()
) -> None:
    """Remove views from their days, then restore the people of others; each day is written once."""
    removed, restored = _by_day(gone), _by_day(back)
    try:
        days = _load(tables, removed.keys() | restored.keys())
        for key, day in days.items():
            for view in removed.get(key, ()):
                day.remove(view)
            for view in restored.get(key, ()):
                day.restore(view)
    except Damaged:
        reset(tables)
        return
    _save(tables, days)


def _by_day(views: Iterable[View]) -> Mapping[Key, Sequence[View]]:
    by_key: defaultdict[Key, list[View]] = defaultdict(list)
    for view in views:
        by_key[view.key].append(view)
    return by_key


def reset(tables: AudienceWrites) -> None:
    """Begin again, because a stored day is damaged."""
    tables.clear_days()
    tables.set_rolled_to(0)


def _load(tables: AudienceWrites, keys: Collection[Key]) -> dict[Key, Day]:
    """Return an empty day where there is none; raises Damaged."""
    rows = tables.stored_days(keys)
    return {key: Day.parse(*rows[key]) if key in rows else Day() for key in keys}


def _save(tables: AudienceWrites, days: Mapping[Key, Day]) -> None:
    tables.save_days({key: day.columns() for key, day in days.items()})
    tables.drop_weeks({week_of(key) for key in days})
