"""Unreadable requests in SQLite: found by the index of their ids alone."""

import sqlite3
from contextlib import closing

from relay.store.sqlite import unreadable
from tests.conftest import ManualClock
from tests.store.places import SqlitePlace


async def test_a_request_is_found_by_the_index_of_the_ids(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with sqlite_place.open(clock):
        pass
    with closing(sqlite3.connect(sqlite_place.path)) as db:
        question = f"EXPLAIN QUERY PLAN {unreadable._FIND}"
        plan = str(db.execute(question, (b"", b"", None, 9)).fetchall())
    assert "(source=? AND digest>? AND digest<?)" in plan
    assert "SCAN found" not in plan
    assert "SCAN unreadable" not in plan
