"""Outcomes in SQLite: a batch is written whole or not at all, even if a delivery has changed."""

from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from relay.core.delivery import Delivery, Settlement
from relay.core.errors import StoreFull
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.store import SqliteStore
from tests.store.conformance import accept, event, lease, settlement

PAGE = 4096


def rows(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as other:
        return other.execute(sql).fetchall()


async def leave_room(store: SqliteStore, pages: int) -> None:
    """Let the disk be full after this many more pages."""

    def limit(db: sqlite3.Connection) -> None:
        used = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {used + pages}").fetchall()

    await store._writer.run_exclusive(limit)  # there is no other way to its connection


def wordy(delivery: Delivery) -> Settlement:
    made = settlement(delivery)
    return replace(made, attempt=replace(made.attempt, answer="x" * 50 * PAGE))


async def test_a_batch_on_a_full_disk_writes_nothing(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"))
    first, second = (await lease(store)).deliveries
    await leave_room(store, 10)
    with pytest.raises(StoreFull):
        await store.settle(settlement(first), wordy(second))
    assert rows(store, "SELECT * FROM attempts") == []
    await leave_room(store, 1000)
    await store.settle(settlement(first), wordy(second))
    assert rows(store, "SELECT event FROM attempts ORDER BY rowid") == [(1,), (2,)]


async def test_a_batch_with_a_changed_delivery_on_a_full_disk_writes_nothing(
    store: SqliteStore,
) -> None:
    await accept(store, event("a"), event("b"), event("c"))
    moved, small, large = (await lease(store)).deliveries
    await store.settle(settlement(moved))
    batch = settlement(small, "parked"), settlement(moved), wordy(large)
    await leave_room(store, 10)
    with pytest.raises(StoreFull):
        await store.settle(*batch)
    assert rows(store, "SELECT event FROM attempts ORDER BY rowid") == [(1,)]
    await leave_room(store, 1000)
    await store.settle(*batch)
    assert rows(store, "SELECT event FROM attempts ORDER BY rowid") == [(1,), (2,), (1,), (3,)]
    assert (await store.backlogs())["sales"].pending == 1


async def test_a_second_outcome_of_a_delivery_only_adds_an_attempt(store: SqliteStore) -> None:
    await accept(store, *(event(str(number)) for number in range(70)))
    taken = (await lease(store)).deliveries
    await store.settle(*map(settlement, taken), settlement(taken[0], "dead"))
    assert rows(store, "SELECT status, count(*) FROM deliveries GROUP BY 1") == [("delivered", 70)]
    assert rows(store, "SELECT count(*) FROM attempts") == [(71,)]
    assert (await store.backlogs())["sales"].pending == 0
