"""Operators' queries and changes in SQLite: indexes, and failures of a withdrawal."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest

from relay.core.errors import StoreError
from relay.store import dead_letters
from relay.store.selection import Selection
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS
from tests.store.conformance import accept, lease, settlement
from tests.store.test_operations import event, replay, settle, statuses, until_withdrawn


async def test_all_dead_letters_are_counted_from_an_index_alone(store: SqliteStore) -> None:
    values = {"sink": "sales", "outcome": "dead"}
    sql = dead_letters._REASONS.by(values)
    with closing(sqlite3.connect(store.path)) as db:
        plan = str(db.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall())
    assert "COVERING INDEX deliveries_reasons" in plan


async def refuse_withdrawals(store: SqliteStore) -> None:
    await store._writer.run_exclusive(lambda db: db.executescript(_REFUSE))


async def allow_withdrawals(store: SqliteStore) -> None:
    await store._writer.run_exclusive(lambda db: db.execute("DROP TRIGGER refuse"))


_REFUSE = """
CREATE TEMP TRIGGER refuse BEFORE UPDATE OF replayed_from ON main.deliveries
WHEN NEW.replayed_from IS NULL
BEGIN SELECT raise(ABORT, 'as if the disk were full'); END
"""


async def test_a_withdrawal_that_fails_is_repeated_and_holds_up_no_other_replay(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.withdrawals.RETRY_S", 0.001)
    await accept(store, *(event(f"e{number}") for number in range(10)))
    await settle(store)
    begun = await replay(store, Selection(), *range(1, 10))
    await refuse_withdrawals(store)
    with pytest.raises(StoreError):
        await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    nothing = await lease(store, limit=2)
    assert (nothing.deliveries, nothing.next_due_ms) == ((), None)
    await replay(store, Selection(), 10)
    later = await lease(store, limit=2)
    assert [each.event.id for each in later.deliveries] == ["e9"]
    await allow_withdrawals(store)
    await store.settle(settlement(later.deliveries[0]))
    await until_withdrawn(store)
    assert set((await statuses(store)).values()) == {"delivered"}


async def test_a_failed_attempt_and_its_withdrawal_share_a_transaction(store: SqliteStore) -> None:
    await accept(store, event("a"))
    await settle(store)
    begun = await replay(store, Selection(), 1)
    (delivery,) = (await lease(store)).deliveries
    await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    await refuse_withdrawals(store)
    with pytest.raises(StoreError):
        await store.settle(settlement(delivery, "retry"))
    await allow_withdrawals(store)
    await store.settle(settlement(delivery, "retry"))
    history = await store.events.history(1)
    assert history is not None
    assert [each.result for each in history.attempts] == ["delivered", "retry"]
    assert (await store.backlogs())["sales"].pending == 0


async def test_a_close_does_not_wait_for_a_search(store: SqliteStore) -> None:
    begun = threading.Event()
    counting = (
        "WITH RECURSIVE c(x) AS (SELECT begun() UNION ALL SELECT x + 1 FROM c WHERE x < 100000000)"
        "SELECT max(x) FROM c"
    )

    def tell() -> int:
        begun.set()
        return 1

    def long(db: Any) -> Any:
        db.create_function("begun", 0, tell)
        return db.execute(counting).fetchone()

    for each in (store._shared.pager, store._shared.searcher, store._shared.reader):
        begun.clear()
        search_ = asyncio.create_task(each.read(long))
        await asyncio.to_thread(begun.wait, 10)
        search_.cancel()
    async with asyncio.timeout(10):
        await store.close()
