"""Sessions of the page: over restarts, until they expire or their token changes."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from relay.core.config_values import Size
from relay.core.errors import StoreFull
from relay.store.sessions import AGE_MS, IDLE_MS, SESSIONS_MAX, Role, Session
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock

MINUTE_MS = 60_000
TOKEN = "the-admin-token"
ADDRESS = "192.0.2.7"


@asynccontextmanager
async def opened(folder: Path, *, min_free: str = "1B") -> AsyncIterator[SqliteStore]:
    settings = SqliteSettings(path=str(folder / "relay.db"), min_free=Size.parse(min_free))
    store = await open_store(settings, clock=ManualClock())
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path) as store:
        yield store


def identifier(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def log_in(
    store: SqliteStore,
    number: int = 1,
    *,
    role: Role = "admin",
    token: str = TOKEN,
    at_ms: int = NOW_MS,
) -> None:
    fingerprint = store.sessions.fingerprint(token)
    await store.sessions.open(
        identifier(number), role=role, fingerprint=fingerprint, address=ADDRESS, now_ms=at_ms
    )


async def find(
    store: SqliteStore, number: int = 1, *, at_ms: int = NOW_MS, tokens: tuple[str, ...] = (TOKEN,)
) -> Session | None:
    fingerprints = [store.sessions.fingerprint(token) for token in tokens]
    return await store.sessions.find(identifier(number), fingerprints=fingerprints, now_ms=at_ms)


def rows(store: SqliteStore) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as other:
        return other.execute("SELECT * FROM sessions").fetchall()


async def test_a_session_is_found_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await log_in(store, role="viewer")
    async with opened(tmp_path) as store:
        assert await find(store) == Session("viewer", ADDRESS)
        assert await find(store, 2) is None


async def test_a_closed_session_is_unknown(store: SqliteStore) -> None:
    await log_in(store, 1)
    await log_in(store, 2)
    await store.sessions.close(identifier(1))
    await store.sessions.close(identifier(1))
    assert await find(store, 1) is None
    assert await find(store, 2) is not None


async def test_only_digests_of_the_identifier_and_the_token_are_stored(tmp_path: Path) -> None:
    secret = b"the-identifier-of-32-random-byte"
    async with opened(tmp_path) as store:
        token = store.sessions.fingerprint(TOKEN)
        await store.sessions.open(
            secret, role="admin", fingerprint=token, address=None, now_ms=NOW_MS
        )
        assert [row[0] for row in rows(store)] == [sha256(secret).digest()]
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes()
        assert TOKEN.encode() not in file.read_bytes()


async def test_a_changed_token_ends_its_sessions_only(store: SqliteStore) -> None:
    await log_in(store, 1, token="old")
    await log_in(store, 2, token="viewers", role="viewer")
    current = ("new", "viewers")
    assert await find(store, 1, tokens=current) is None
    assert await find(store, 2, tokens=current) is not None
    assert await find(store, 1, tokens=("old", "viewers")) is not None
    assert await find(store, 2, tokens=()) is None


async def test_fingerprints_are_those_of_one_store(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with opened(tmp_path) as store, opened(tmp_path / "other") as other:
        mine = store.sessions.fingerprint(TOKEN)
        assert mine not in {sha256(TOKEN.encode()).digest(), other.sessions.fingerprint(TOKEN)}
        assert mine != store.sessions.fingerprint(f"{TOKEN} ")
        assert store.sessions.fingerprint("\udcff") != store.sessions.fingerprint("ü")
    async with opened(tmp_path) as store:
        assert store.sessions.fingerprint(TOKEN) == mine


async def test_a_session_ends_when_it_is_idle_for_too_long(store: SqliteStore) -> None:
    await log_in(store)
    assert await find(store, at_ms=NOW_MS + IDLE_MS) is not None
    assert await find(store, at_ms=NOW_MS + IDLE_MS + 1) is None


async def test_a_used_session_ends_at_its_age(store: SqliteStore) -> None:
    await log_in(store)
    for later_ms in range(0, AGE_MS + 1, IDLE_MS // 2):
        await store.sessions.seen(identifier(1), now_ms=NOW_MS + later_ms)
    end_ms = NOW_MS + AGE_MS
    assert await find(store, at_ms=end_ms) is not None
    assert await find(store, at_ms=end_ms + 1) is None


async def test_a_request_is_noted_once_a_minute(tmp_path: Path) -> None:
    commits: list[float] = []
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))
    store = await open_store(settings, clock=ManualClock(), committed=commits.append)
    await log_in(store)
    commits.clear()
    for at_ms in range(NOW_MS, NOW_MS + MINUTE_MS, 1000):
        await store.sessions.seen(identifier(1), now_ms=at_ms)
    assert commits == []
    for at_ms in (NOW_MS + MINUTE_MS, NOW_MS + MINUTE_MS + 1):
        await store.sessions.seen(identifier(1), now_ms=at_ms)
    assert len(commits) == 1
    assert await find(store, at_ms=NOW_MS + MINUTE_MS + IDLE_MS) is not None
    assert await find(store, at_ms=NOW_MS + MINUTE_MS + IDLE_MS + 1) is None
    await store.close()


async def test_a_request_does_not_revive_an_ended_session(store: SqliteStore) -> None:
    await log_in(store)
    late_ms = NOW_MS + IDLE_MS + 1
    await store.sessions.seen(identifier(1), now_ms=late_ms)
    await store.sessions.seen(identifier(2), now_ms=late_ms)
    assert await find(store, at_ms=late_ms) is None
    assert len(rows(store)) == 1


async def test_a_login_removes_expired_sessions(store: SqliteStore) -> None:
    await log_in(store, 1)
    await log_in(store, 2, at_ms=NOW_MS + IDLE_MS)
    await log_in(store, 3, at_ms=NOW_MS + IDLE_MS + 1)
    assert {row[0] for row in rows(store)} == {
        sha256(identifier(number)).digest() for number in (2, 3)
    }


async def test_the_sessions_seen_longest_ago_make_room(store: SqliteStore) -> None:
    for number in range(SESSIONS_MAX):
        await log_in(store, number, at_ms=NOW_MS + number)
    await store.sessions.seen(identifier(0), now_ms=NOW_MS + MINUTE_MS)
    for number in (SESSIONS_MAX, SESSIONS_MAX + 1):
        await log_in(store, number, at_ms=NOW_MS + MINUTE_MS)
    assert len(rows(store)) == SESSIONS_MAX
    found = {
        number: await find(store, number, at_ms=NOW_MS + MINUTE_MS) is not None
        for number in (0, 1, 2, 3, SESSIONS_MAX, SESSIONS_MAX + 1)
    }
    assert found == {0: True, 1: False, 2: False, 3: True, 200: True, 201: True}


async def test_a_viewers_logins_end_no_session_of_an_administrator(store: SqliteStore) -> None:
    await log_in(store, 0, role="admin")
    for number in range(1, SESSIONS_MAX + 2):
        await log_in(store, number, role="viewer", at_ms=NOW_MS + number)
    assert await find(store, 0, at_ms=NOW_MS + SESSIONS_MAX) is not None
    assert await find(store, 1, at_ms=NOW_MS + SESSIONS_MAX) is None


async def test_a_login_succeeds_while_the_clock_stands_still(store: SqliteStore) -> None:
    for number in range(SESSIONS_MAX + 50):
        await log_in(store, number)
        assert await find(store, number) is not None
    assert len(rows(store)) == SESSIONS_MAX


@pytest.mark.parametrize(("back_ms", "lives"), [(MINUTE_MS, True), (MINUTE_MS + 1, False)])
async def test_a_clock_set_back_by_more_than_a_minute_ends_sessions(
    store: SqliteStore, back_ms: int, *, lives: bool
) -> None:
    await log_in(store, 1)
    early_ms = NOW_MS - back_ms
    await store.sessions.seen(identifier(1), now_ms=early_ms)
    assert (await find(store, 1, at_ms=early_ms) is not None) == lives
    await log_in(store, 2, at_ms=early_ms)
    assert await find(store, 2, at_ms=early_ms) is not None
    assert len(rows(store)) == (2 if lives else 1)


async def test_an_operator_can_log_in_below_the_floor_of_free_space(tmp_path: Path) -> None:
    async with opened(tmp_path, min_free="1000000GiB") as store:
        with pytest.raises(StoreFull):
            await store.probe(now_ms=NOW_MS)
        await log_in(store)
        assert await find(store) is not None


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
