"""Plans of the statements that note the states of sinks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.store.sqlite import sink_states
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = await open_store(SqliteSettings(path=str(tmp_path / "relay.db")), clock=clock)
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    "sql",
    [
        sink_states._DROP_LATER,
        sink_states._MOVE_LATER,
        sink_states._CHANGE,
        sink_states._FORGET,
        sink_states._FORGET_UNKNOWN,
    ],
)
async def test_a_change_does_not_read_the_others(store: SqliteStore, sql: str) -> None:
    values = {"now": 1, "old": 1, "sink": "crm", "state": "active", "since_ms": None}
    plan = await store._shared.reader.read(
        lambda db: db.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    )
    # `last` is a single row.
    one_row = {"SCAN CONSTANT ROW", "SCAN last"}
    assert not [step for *_, step in plan if step.startswith("SCAN ") and step not in one_row]
