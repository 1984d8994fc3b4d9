"""Heartbeats, and the times without one."""

import asyncio
from uuid import uuid4

from relay.core.delivery_rules import WINDOW_MS, Interval
from relay.store import Store
from relay.store.absences import Absence
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import PostgresPlace

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


async def start(store: Store, at_ms: int) -> Absence | None:
    return await store.absences.beat(now_ms=at_ms, cause="stopped", over_ms=0)


async def beat(store: Store, at_ms: int) -> Absence | None:
    return await store.absences.beat(now_ms=at_ms, cause="stalled", over_ms=MINUTE_MS)


def join(place: PostgresPlace, *, ago_s: float = 0) -> None:
    """Let another relay be at work."""
    place.rows(
        """
        INSERT INTO relay.members (id, name, version, address, config, sinks, since, beat_at)
        VALUES (
            %s, 'other', '1', '', '', '{}', now(), clock_timestamp() - make_interval(secs => %s)
        )
        """,
        uuid4(),
        ago_s,
    )


async def test_a_new_store_was_not_absent(store: Store) -> None:
    assert await store.absences.last_alive_ms() is None
    assert await start(store, NOW_MS) is None
    assert await store.absences.last_alive_ms() == NOW_MS
    assert await store.absences.newest(before=None, limit=9) == []


async def test_a_gap_is_an_absence_and_one_beyond_the_retries_lost_events(store: Store) -> None:
    await start(store, NOW_MS)
    short = await start(store, NOW_MS + 5000)
    assert short is not None
    assert (short.cause, short.from_ms, short.to_ms, short.lacks) == (
        "stopped",
        NOW_MS,
        NOW_MS + 5000,
        None,
    )
    long = await beat(store, NOW_MS + HOUR_MS)
    assert long is not None
    assert long.lacks == Interval(from_ms=NOW_MS + 5000, to_ms=NOW_MS + HOUR_MS - WINDOW_MS)
    assert long.cause == "stalled"
    assert await store.absences.newest(before=None, limit=9) == [long, short]
    assert await store.absences.newest(before=long.id, limit=9) == [short]
    assert await store.absences.unacknowledged(limit=9) == [long]
    assert await store.absences.unacknowledged_loss_ms() == HOUR_MS - WINDOW_MS - 5000


async def test_heartbeats_in_time_leave_no_absence(store: Store) -> None:
    await start(store, NOW_MS)
    for step in range(1, 5):
        assert await beat(store, NOW_MS + step * MINUTE_MS) is None
    assert await store.absences.last_alive_ms() == NOW_MS + 4 * MINUTE_MS
    assert await store.absences.newest(before=None, limit=9) == []


async def test_an_absence_is_acknowledged_once(store: Store) -> None:
    await start(store, NOW_MS)
    absence = await start(store, NOW_MS + HOUR_MS)
    assert absence is not None
    noted = await store.absences.acknowledge(absence.id, now_ms=NOW_MS + 1)
    assert noted is not None
    assert noted.acknowledged_ms == NOW_MS + 1
    assert await store.absences.acknowledge(absence.id, now_ms=NOW_MS + 9) == noted
    assert await store.absences.acknowledge(99, now_ms=NOW_MS) is None
    assert await store.absences.unacknowledged(limit=9) == []
    assert await store.absences.unacknowledged_loss_ms() == 0


async def test_a_clock_that_was_set_back_is_followed(store: Store) -> None:
    await start(store, NOW_MS + HOUR_MS)
    assert await beat(store, NOW_MS) is None
    assert await store.absences.last_alive_ms() == NOW_MS
    assert await beat(store, NOW_MS + 2 * MINUTE_MS) is not None


async def test_a_relay_that_joins_others_ends_no_absence(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as joining:
        await start(one, NOW_MS)
        join(postgres_place)
        assert await joining.absences.last_alive_ms() is None
        assert await start(joining, NOW_MS + 4000) is None
        assert await beat(one, NOW_MS + 5000) is None
        assert await one.absences.newest(before=None, limit=9) == []


async def test_a_relay_that_follows_others_ends_their_absence(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as store:
        await start(store, NOW_MS)
        join(postgres_place, ago_s=60)
        assert await store.absences.last_alive_ms() == NOW_MS
        assert await start(store, NOW_MS + 4000) is not None


async def test_an_outage_of_the_database_is_one_absence_of_all_relays(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        await start(one, NOW_MS)
        join(postgres_place)
        later_ms = NOW_MS + HOUR_MS
        ended = await asyncio.gather(beat(one, later_ms), beat(other, later_ms + 1))
        assert len([each for each in ended if each is not None]) == 1
        assert await beat(other, later_ms + 2) is None
        (absence,) = await other.absences.newest(before=None, limit=9)
        assert absence in ended
        assert (absence.cause, absence.from_ms) == ("stalled", NOW_MS)


async def test_a_relay_whose_clock_is_behind_does_not_set_the_heartbeat_back(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as store:
        await start(store, NOW_MS + 4000)
        assert await beat(store, NOW_MS) is None
        assert await store.absences.last_alive_ms() == NOW_MS + 4000
