"""Clients that had the right token lately, with a real store."""

import asyncio
from pathlib import Path

from relay.admin.auth import NOTED_EVERY_MS, KnownClients
from relay.core.errors import StoreFull
from relay.store.sessions import KNOWN_MAX, KNOWN_MS
from tests.conftest import ManualClock
from tests.store.places import opened


async def test_a_client_is_known_at_once_and_stored_at_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(tmp_path / "relay.db", clock) as store:
        known = KnownClients(store.sessions, clock)
        running = asyncio.create_task(known.run())
        mark = known.mark("address", "192.0.2.7")
        assert mark not in known
        known.note(mark, "admin")
        assert mark in known
        async with asyncio.timeout(10):
            while not await store.sessions.remembered(now_ms=clock.now_ms()):
                await asyncio.sleep(0.01)
        running.cancel()


async def test_a_client_is_known_for_a_month_after_its_last_right_token(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with opened(tmp_path / "relay.db", clock) as store:
        known = KnownClients(store.sessions, clock)
        mark = known.mark("address", "192.0.2.7")
        known.note(mark, "admin")
        await known.exchange()
        clock.ms += KNOWN_MS - 1
        assert mark in known
        known.note(mark, "viewer")
        await known.exchange()
        (client,) = await store.sessions.remembered(now_ms=clock.now_ms())
        assert (client.mark, client.role, client.right_ms) == (mark, "admin", clock.ms)
        clock.ms += KNOWN_MS
        assert mark not in known


async def test_a_client_is_stored_once_a_day(tmp_path: Path, clock: ManualClock) -> None:
    async with opened(tmp_path / "relay.db", clock) as store:
        known = KnownClients(store.sessions, clock)
        mark = known.mark("address", "192.0.2.7")
        times = []
        for later_ms in (0, NOTED_EVERY_MS - 1, 1):
            clock.ms += later_ms
            known.note(mark, "admin")
            await known.exchange()
            times += [each.right_ms for each in await store.sessions.remembered(now_ms=clock.ms)]
    assert times == [times[0], times[0], times[0] + NOTED_EVERY_MS]


class Full:
    """Sessions of a store with a full disk."""

    def fingerprint(self, token: str) -> bytes:
        return token.encode()

    async def remember(self, *_: object, now_ms: int) -> None:
        raise StoreFull(now_ms)


async def test_a_full_disk_bounds_what_is_known_and_forgets_none(clock: ManualClock) -> None:
    known = KnownClients(Full(), clock)  # type: ignore[arg-type]
    marks = [known.mark(str(number)) for number in range(2 * KNOWN_MAX)]
    running = asyncio.create_task(known.run())
    for mark in marks:
        known.note(mark, "admin")
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    assert [mark in known for mark in marks] == [True] * KNOWN_MAX + [False] * KNOWN_MAX
