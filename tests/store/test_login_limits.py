"""The limits of wrong tokens."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.store import Store
from relay.store.login_limits import TOTAL_BURST, TRIES, TRY_AGAIN_S, LoginLimits
from relay.store.sqlite.login_limits import SqliteLoginLimits
from tests.conftest import ManualClock
from tests.store.places import Place, PostgresPlace

ADDRESS = "192.0.2.7"
TRY_AGAIN_MS = int(TRY_AGAIN_S * 1000)


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with place.open(clock) as one:
        yield one


@pytest.fixture
def limits(store: Store) -> LoginLimits:
    return store.login_limits


async def exhaust(limits: LoginLimits, address: str | None = ADDRESS) -> None:
    assert [await limits.take(address) for _ in range(TRIES)] == [0] * TRIES


async def test_five_tries_are_free_then_one_comes_every_30_s(
    limits: LoginLimits, clock: ManualClock
) -> None:
    await exhaust(limits)
    for _ in range(3):
        assert await limits.take(ADDRESS) == 30
        clock.ms += 29_500
        assert await limits.take(ADDRESS) == 1
        clock.ms += 500
        assert await limits.take(ADDRESS) == 0


async def test_all_tries_are_free_again_after_a_while(
    limits: LoginLimits, clock: ManualClock
) -> None:
    await exhaust(limits)
    clock.ms += TRIES * TRY_AGAIN_MS
    await exhaust(limits)
    assert await limits.take(ADDRESS) == 30


async def test_another_address_does_not_wait(limits: LoginLimits) -> None:
    await exhaust(limits)
    assert await limits.take("192.0.2.8") == 0
    assert await limits.take(None) == 0


async def test_a_right_token_returns_its_try_and_no_other(limits: LoginLimits) -> None:
    for _ in range(TRIES - 1):
        await limits.take(ADDRESS)
    for _ in range(3):
        assert await limits.take(ADDRESS) == 0
        await limits.put_back(ADDRESS)
    await limits.put_back("192.0.2.8")
    assert await limits.take(ADDRESS) == 0
    assert await limits.take(ADDRESS) == 30


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.7", "192.0.2.8", False),
        (None, None, True),
    ],
)
async def test_an_ipv6_network_counts_as_one_address(
    limits: LoginLimits, first: str | None, second: str | None, is_one: bool
) -> None:
    await exhaust(limits, first)
    assert (await limits.take(second) > 0) is is_one


async def test_wrong_tokens_of_all_addresses_are_limited_too(
    limits: LoginLimits, clock: ManualClock
) -> None:
    waits = [await limits.failed() for _ in range(TOTAL_BURST + 2)]
    assert waits == [0] * TOTAL_BURST + [30, 30]
    clock.ms += 500
    assert await limits.failed() == 0
    assert await limits.failed() == 30
    assert await limits.take("192.0.2.99") == 0


async def test_tries_at_the_same_moment_count_one_by_one(limits: LoginLimits) -> None:
    waits = await asyncio.gather(*(limits.take(ADDRESS) for _ in range(40)))
    assert sorted(waits) == [0] * TRIES + [30] * (40 - TRIES)


async def test_addresses_are_forgotten_beyond_a_limit(
    limits: LoginLimits, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in ("sqlite", "postgres"):
        monkeypatch.setattr(f"relay.store.{engine}.login_limits.ADDRESSES_MAX", 3)
    await exhaust(limits)
    for n in range(2):
        clock.ms += 1
        await exhaust(limits, f"10.0.0.{n}")
        await limits.failed()
    assert await limits.take(ADDRESS) == 30
    for n in range(2, 4):
        clock.ms += 1
        await exhaust(limits, f"10.0.0.{n}")
        await limits.failed()
    assert await limits.take(ADDRESS) == 0


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 60), max_size=40))
async def test_never_more_tries_than_the_limit_allows(gaps: list[float]) -> None:
    clock = ManualClock()
    limits, started_s, tries = SqliteLoginLimits(clock), clock.monotonic(), 0
    for gap in gaps:
        clock.ms += int(gap * 1000)
        tries += await limits.take(ADDRESS) == 0
    assert tries <= TRIES + (clock.monotonic() - started_s) / TRY_AGAIN_S + 1e-6


async def test_a_try_on_one_relay_counts_on_all_and_after_a_restart(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as first, postgres_place.open(clock) as second:
        members = [first.login_limits, second.login_limits]
        waits = await asyncio.gather(*(members[n % 2].take(ADDRESS) for n in range(8)))
        assert sorted(waits) == [0] * TRIES + [30] * 3
    async with postgres_place.open(clock) as again:
        assert await again.login_limits.take(ADDRESS) == 30


async def test_a_clock_that_was_far_ahead_locks_nobody_out(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as store:
        clock.ms += 3_600_000
        await exhaust(store.login_limits)
        for _ in range(TOTAL_BURST):
            await store.login_limits.failed()
        clock.ms -= 3_600_000
        assert await store.login_limits.failed() == 0
        await exhaust(store.login_limits)
        assert await store.login_limits.take(ADDRESS) == 30
