"""The audience by day: made of the rows of `audience`, many at once, and kept right by erasures."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from relay.store.audience.days import Day, Key, View, days_of, week_of
from relay.store.audience.sets import Damaged
from relay.store.audience.tables import RollupTables

BATCH_MIN, BATCH_MAX = 1000, 20_000
"""Rows per step. A step writes the whole day anew, however few rows it adds."""

DAY_SHARE = 32
"""Fraction of the newest day's events, 1 in this many, that a step waits for."""

NUMBERED = 500
"""New people per transaction."""

PART_ROWS = 250
PART_PAUSE_S = 0.001
"""Rows counted at a time, and the pause between: counting them holds Python's lock for 2 ms, and
acknowledgements need it."""


class Batch(msgspec.Struct, frozen=True):
    """The next rows, `after` one event up to another."""

    after: int
    upto: int
    new_people: Sequence[int]

    def numberings(self) -> Iterator[Sequence[int]]:
        """Yield the new people, as many at a time as one transaction takes."""
        for start in range(0, len(self.new_people), NUMBERED):
            yield self.new_people[start : start + NUMBERED]

    def days(self, tables: RollupTables) -> dict[Key, Day]:
        """Count them, once all people have numbers; sleeps, so not for the event loop's thread."""
        days: defaultdict[Key, Day] = defaultdict(Day)
        after = self.after
        while after < self.upto:
            _, last = tables.next_rows(after, PART_ROWS)
            upto = self.upto if last is None else min(last, self.upto)
            for key, day in days_of(tables.views(after, upto)).items():
                days[key].merge(day)
            after = upto
            time.sleep(PART_PAUSE_S)
        return days


def next_batch(tables: RollupTables) -> Batch | None:
    """Return the next rows to add; None while there are too few."""
    after = tables.rolled_to()
    count, upto = tables.next_rows(after, BATCH_MAX)
    enough = min(max(BATCH_MIN, tables.newest_day_events() // DAY_SHARE), BATCH_MAX)
    if upto is None or count < enough:
        return None
    return Batch(after, upto, tables.new_people(after, upto))


def add(tables: RollupTables, batch: Batch, days: Mapping[Key, Day]) -> None:
    """Add a batch to the stored days, unless they have been begun again since it was read."""
    if tables.rolled_to() != batch.after:
        return
    try:
        for key, day in days.items():
            stored = load(tables, key)
            stored.merge(day)
            _save(tables, key, stored)
    except Damaged:
        reset(tables)
        return
    tables.set_rolled_to(batch.upto)


def store_week(tables: RollupTables, week: Key) -> None:
    """Join the days of a week."""
    joined = Day()
    try:
        for row in tables.days_of_week(week):
            joined.merge(Day.parse(*row))
    except Damaged:
        reset(tables)
        return
    tables.save_week(week, joined.columns())


def forget_view(tables: RollupTables, event: int) -> None:
    """Remove a view from its day, before its row goes with all others of the same person."""
    view = tables.view(event)
    if view is None:
        return
    try:
        day = load(tables, view.key)
        day.remove(view)
    except Damaged:
        reset(tables)
        return
    _save(tables, view.key, day)


def forget_person(tables: RollupTables, person: int) -> None:
    """Remove the person's number, unless the person has returned since the rows were removed.

    The rows of a return stay, but days have lost the person with the removed rows.
    """
    views = list(tables.views_of(person))
    _restore(tables, views)
    if not views:
        tables.delete_viewer(person)


def uncount(tables: RollupTables, events: Sequence[int]) -> None:
    """Remove views from the audience and from its days, where the same people's others stay."""
    for event in events:
        view = tables.view(event)
        forget_view(tables, event)
        tables.delete_view(event)
        if view is not None and view.person is not None:
            _restore(tables, tables.views_on(view.key, view.person))


def _restore(tables: RollupTables, views: Iterable[View]) -> None:
    try:
        for view in views:
            day = load(tables, view.key)
            day.restore(view)
            _save(tables, view.key, day)
    except Damaged:
        reset(tables)


def reset(tables: RollupTables) -> None:
    """Begin again, because a stored day is damaged."""
    tables.clear_days()
    tables.set_rolled_to(0)


def load(tables: RollupTables, key: Key) -> Day:
    """Return an empty day if there is none; raises Damaged."""
    row = tables.day(key)
    return Day() if row is None else Day.parse(*row)


def _save(tables: RollupTables, key: Key, day: Day) -> None:
    tables.save_day(key, day.columns())
    tables.drop_week(week_of(key))
