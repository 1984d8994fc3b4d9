"""The quarantine keeps and counts unverified requests, and leaves no trace once they expire."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.core.authentication import UnverifiedRequest
from relay.core.config_values import Size
from relay.core.errors import StoreFull
from relay.store.quarantine import Rotation
from relay.store.sqlite.quarantine import STEP_BYTES, STEP_ROWS
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock

UNTIL_MS, EXPIRES_MS = NOW_MS + 900_000, NOW_MS + 1_580_000


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    return SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))


@pytest.fixture
async def store(settings: SqliteSettings, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = await open_store(settings, clock=clock)
    yield opened
    await opened.close()


def request(body: bytes = b"{}", *, source: str = "main", at_ms: int = NOW_MS) -> UnverifiedRequest:
    return UnverifiedRequest(source, at_ms, b"t=1,v1=00", b"host: relay\r\n", body)


async def begin(store: SqliteStore, source: str = "main", now_ms: int = NOW_MS) -> Rotation:
    return await store.quarantine.begin(
        source, now_ms=now_ms, until_ms=now_ms + 900_000, expires_ms=now_ms + 1_580_000
    )


async def waiting(store: SqliteStore, source: str = "main") -> list[UnverifiedRequest]:
    found = await store.quarantine.waiting(source, after=0, limit=1000)
    return [each.request for each in found]


async def test_kept_requests_are_returned_unchanged_in_order_and_by_source(
    store: SqliteStore,
) -> None:
    await begin(store)
    kept = [request(b"\x00\xff{"), request(b"", at_ms=NOW_MS + 1), request(b"{}" * 500)]
    for each in (*kept, request(source="other")):
        await store.quarantine.keep(each)
    assert await waiting(store) == kept
    first, second = await store.quarantine.waiting("main", after=0, limit=2)
    assert (first.request, second.request) == (kept[0], kept[1])
    (third,) = await store.quarantine.waiting("main", after=second.number, limit=2)
    assert third.request == kept[2]


async def test_a_rotation_is_counted_and_survives_a_restart(
    settings: SqliteSettings, clock: ManualClock
) -> None:
    store = await open_store(settings, clock=clock)
    await begin(store)
    for body in (b"a", b"b", b"c"):
        await store.quarantine.keep(request(body))
    first, second, _ = await store.quarantine.waiting("main", after=0, limit=9)
    await store.quarantine.release("main", [first.number, second.number], duplicates=1)
    await store.close()
    store = await open_store(settings, clock=clock)
    expected = Rotation(
        source="main",
        begun_ms=NOW_MS,
        until_ms=UNTIL_MS,
        expires_ms=EXPIRES_MS,
        kept=3,
        verified=2,
        duplicates=1,
        waiting=1,
        bytes=request(b"c").size,
    )
    assert await store.quarantine.rotations() == [expected]
    assert await store.quarantine.rotation("main") == expected
    assert await store.quarantine.rotation("other") is None
    await store.close()


async def test_a_second_start_extends_and_never_shortens(store: SqliteStore) -> None:
    await begin(store)
    await store.quarantine.keep(request())
    longer = await begin(store, now_ms=NOW_MS + 60_000)
    assert (longer.begun_ms, longer.until_ms) == (NOW_MS, UNTIL_MS + 60_000)
    shorter = await store.quarantine.begin(
        "main", now_ms=NOW_MS + 70_000, until_ms=NOW_MS + 80_000, expires_ms=NOW_MS + 90_000
    )
    assert (shorter.until_ms, shorter.expires_ms, shorter.kept) == (
        UNTIL_MS + 60_000,
        EXPIRES_MS + 60_000,
        1,
    )


async def test_a_start_after_the_end_is_a_new_rotation_with_the_waiting_requests(
    store: SqliteStore,
) -> None:
    await begin(store)
    for body in (b"a", b"b"):
        await store.quarantine.keep(request(body))
    first, _ = await store.quarantine.waiting("main", after=0, limit=9)
    await store.quarantine.release("main", [first.number], duplicates=1)
    await store.quarantine.disarm("main", now_ms=NOW_MS + 5)
    ended = await store.quarantine.rotation("main")
    assert ended is not None
    assert (ended.until_ms, ended.expires_ms) == (NOW_MS + 5, EXPIRES_MS)
    again = await begin(store, now_ms=NOW_MS + 10)
    assert (again.begun_ms, again.until_ms) == (NOW_MS + 10, UNTIL_MS + 10)
    assert (again.kept, again.verified, again.duplicates, again.waiting) == (1, 0, 0, 1)


async def expire(store: SqliteStore, source: str = "main") -> int:
    """In how many steps."""
    steps = 1
    while await store.quarantine.expire(source):
        steps += 1
    return steps


async def test_only_expired_requests_are_removed_in_small_steps(
    store: SqliteStore,
) -> None:
    await begin(store)
    await begin(store, "other")
    await store.quarantine.keep(request(source="other"))
    for number in range(STEP_ROWS + 1):
        await store.quarantine.keep(request(b"%d" % number))
    assert await expire(store) == 3
    for _ in range(2):
        await store.quarantine.keep(request(b"x" * STEP_BYTES))
    assert await expire(store) == 3
    assert await waiting(store) == []
    assert [each.source for each in await store.quarantine.rotations()] == ["other"]
    assert len(await waiting(store, "other")) == 1


async def test_no_file_contains_expired_requests(store: SqliteStore, tmp_path: Path) -> None:
    marked = b"ada@example.com"
    await begin(store)
    await store.quarantine.keep(request(marked * 300))
    await expire(store)
    await store.close()
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert files
    assert [path.name for path in files if marked in path.read_bytes()] == []


async def test_nothing_is_kept_below_the_floor_of_free_space(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("999999999GiB"))
    store = await open_store(settings, clock=clock)
    await begin(store)
    with pytest.raises(StoreFull):
        await store.quarantine.keep(request())
    assert await waiting(store) == []
    await store.close()


async def test_an_erasure_covers_quarantined_requests(store: SqliteStore) -> None:
    await begin(store)
    await store.quarantine.keep(request(b'{"data":{"email":"ada@example.com"}}'))
    await store.quarantine.keep(request(b'{"data":{"email":"bob@example.com"}}'))
    (found,) = (await store.personal_data.records("Ada@example.com", after=None)).unreadable
    assert (found.source, found.received_ms) == ("main", NOW_MS)
    assert found.reason == "it fits no secret of the source so far"
    assert (await store.personal_data.count("ada@example.com")).quarantine == 1
    erased = await store.personal_data.erase("ada@example.com", now_ms=NOW_MS)
    assert (erased.quarantine, erased.unreadable) == (1, 0)
    assert [b"bob" in each.body for each in await waiting(store)] == [True]
