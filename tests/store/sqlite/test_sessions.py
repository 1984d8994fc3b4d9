"""Logins where the disk has no room."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from relay.core.config_values import Size
from relay.core.errors import StoreFull
from relay.store.sessions import SESSIONS_MAX
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.test_sessions import find, identifier, log_in


async def test_an_operator_can_log_in_below_the_floor_of_free_space(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1000000GiB"))
    store = await open_store(settings, clock=clock)
    with pytest.raises(StoreFull):
        await store.probe(size=1024)
    await log_in(store)
    assert await find(store) is not None
    await store.close()


async def test_on_a_full_disk_a_login_fails_and_open_sessions_stay(store: SqliteStore) -> None:
    def limit(db: sqlite3.Connection) -> None:
        (used,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {used}").fetchall()

    await log_in(store, 1)
    await store._writer.run_exclusive(limit)
    with pytest.raises(StoreFull):
        await asyncio.gather(*(log_in(store, number) for number in range(2, SESSIONS_MAX)))
    assert await find(store, 1) is not None
    await store.sessions.close(identifier(1))
    assert await find(store, 1) is None
