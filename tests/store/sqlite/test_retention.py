"""Retention in SQLite: what it leaves in the file, and what may happen between its two steps."""

from typing import Any

import pytest
from msgspec.structs import replace

from relay.store.replays import PlannedDelivery
from relay.store.selection import Selection
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, lease
from tests.store.places import SqlitePlace
from tests.store.test_retention import BODY_DAYS, DAY_MS, ID_DAYS, opened, settle_all, sweep
from tests.stub_server import until


async def test_the_file_shrinks(sqlite_place: SqlitePlace, clock: ManualClock) -> None:
    async with opened(sqlite_place, clock) as store:
        large = [replace(event(f"e{number}"), body=bytes(100_000)) for number in range(100)]
        await accept(store, *large, verdicts=[])
    path = sqlite_place.path
    full = path.stat().st_size
    assert full > 10_000_000
    async with opened(sqlite_place, clock) as store:
        await sweep(store, days=BODY_DAYS + 1)
    assert path.stat().st_size < full / 5


async def test_removed_data_is_not_in_the_file(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    secret = b"person@example.com said a thing"
    async with opened(sqlite_place, clock) as store:
        await accept(store, replace(event("a"), body=secret * 200), verdicts=[])
        await sweep(store, days=BODY_DAYS + 1)
    assert all(secret not in file.read_bytes() for file in sqlite_place.path.parent.iterdir())


@pytest.mark.parametrize("days", [BODY_DAYS + 1, ID_DAYS + 1])
async def test_an_event_that_a_replay_has_just_opened_stays(
    sqlite_place: SqlitePlace, clock: ManualClock, days: int
) -> None:
    async with opened(sqlite_place, clock) as one:
        store: Any = one
        await accept(store, event("a"))
        await settle_all(store)
        await store.audience.fill()
        until = await store.events.newest()
        begun = await store.replays.begin(Selection(), total=1, until=until, now_ms=NOW_MS)
        now_ms = NOW_MS + days * DAY_MS
        step = await store._shared.leaser.run(lambda db: store._sweep.find(db, now_ms=now_ms))
        assert step.rows
        await store.replays.open(begun, [PlannedDelivery(1, "sales")], cursor=1, now_ms=now_ms)
        await store._writer.transact(step.remove)
        await sweep(store, days=days)
        (delivery,) = (await lease(store, now_ms=now_ms)).deliveries
        assert delivery.event == event("a")
        assert sqlite_place.rows("SELECT answer FROM relay.attempts") == [("an answer",)]


async def test_a_round_that_removed_something_empties_the_log(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    log = sqlite_place.path.with_name("relay.db-wal")
    async with opened(sqlite_place, clock) as store:
        await accept(store, event("a"), verdicts=[])
        await sweep(store, days=1)
        assert log.stat().st_size > 0
        await sweep(store, days=BODY_DAYS + 1)
        await until(lambda: b"lead.captured" not in log.read_bytes(), what="the log's end")
