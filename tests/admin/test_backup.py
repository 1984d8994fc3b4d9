"""Copies of a running relay's store."""

import stat
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from relay.core.errors import StoreError
from relay.store.sqlite.backup import SqliteBackups
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.integrity import check
from relay.store.sqlite.store import SqliteStore
from tests import service
from tests.admin.test_api import body, send
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay


async def test_a_copy_is_sound_and_holds_accepted_events(
    tmp_path: Path, relay: Relay, operator: Operator
) -> None:
    await send(relay, *(body(f"e{number}") for number in range(50)))
    answer = await operator.client.get("/api/v1/store/backup")
    assert answer.headers["content-type"] == "application/vnd.sqlite3"
    copy = tmp_path / "copy.db"
    copy.write_bytes(answer.content)
    assert await check(copy) == ()
    with closing(sqlite3.connect(copy)) as db, db:
        assert db.execute("SELECT count(*) FROM events").fetchone() == (50,)


async def test_acknowledgements_go_on_while_a_copy_is_read(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(
            service.serving(service.read(tmp_path, tables=ADMIN))
        )
        operator = await stack.enter_async_context(operating(relay))
        asked = operator.client.stream("GET", "/api/v1/store/backup")
        answer = await stack.enter_async_context(asked)
        await send(relay, body("meanwhile"))
        assert len(await answer.aread()) == int(answer.headers["content-length"])


async def test_a_copy_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    async with service.serving(service.read(tmp_path)):
        async with SqliteBackups(tmp_path / "relay.db", min_free=0).copied() as copy:
            assert stat.S_IMODE(copy.stat().st_mode) == 0o600
            assert await check(copy) == ()
        assert not copy.exists()


async def test_a_copy_needs_free_space(relay: Relay, operator: Operator) -> None:
    store = relay.service._store
    assert isinstance(store, SqliteStore)
    store.backups._min_free = 1 << 60
    answer = await operator.client.get("/api/v1/store/backup")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "too little free space for a copy" in answer.json()["detail"]


async def test_a_start_removes_the_copy_of_a_killed_relay(tmp_path: Path) -> None:
    left = tmp_path / "relay.db.backup-0123456789abcdef"
    left.write_bytes(b"half a copy")
    async with service.serving(service.read(tmp_path)):
        assert not left.exists()


async def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match="cannot be"):
        async with SqliteBackups(path, min_free=0).copied():
            raise AssertionError
    assert [file.name for file in tmp_path.iterdir()] == ["relay.db"]
