"""Related events in SQLite: found by indexes alone."""

import sqlite3
from contextlib import closing

from relay.store.sqlite import related as queries
from tests.conftest import ManualClock
from tests.store.places import SqlitePlace


async def test_the_related_events_are_found_by_indexes(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with sqlite_place.open(clock):
        pass
    with closing(sqlite3.connect(sqlite_place.path)) as db:
        for sql in (queries._NEWEST, queries._TOTAL):
            values = [1] * (4 if sql is queries._NEWEST else 3)
            plan = db.execute(f"EXPLAIN QUERY PLAN {sql.format(column='video')}", values).fetchall()
            assert "audience_of_video (video=?" in str(plan)
            assert "SCAN a" not in str(plan)
            assert "TEMP B-TREE" not in str(plan)
