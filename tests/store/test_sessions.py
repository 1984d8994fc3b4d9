"""Sessions of the page: over restarts, until they expire or their token changes."""

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from relay.store import Store
from relay.store.sessions import (
    AGE_MS,
    IDLE_MS,
    KNOWN_MAX,
    KNOWN_MS,
    SESSIONS_MAX,
    KnownClient,
    LoginSession,
    Role,
)
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import Place, PostgresPlace

MINUTE_MS = 60_000
TOKEN = "the-admin-token"
ADDRESS = "192.0.2.7"


def identifier(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def log_in(
    store: Store,
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
    store: Store, number: int = 1, *, at_ms: int = NOW_MS, tokens: tuple[str, ...] = (TOKEN,)
) -> LoginSession | None:
    fingerprints = [store.sessions.fingerprint(token) for token in tokens]
    return await store.sessions.find(identifier(number), fingerprints=fingerprints, now_ms=at_ms)


def digests(place: Place) -> list[Any]:
    return [bytes(digest) for (digest,) in place.rows("SELECT digest FROM relay.sessions")]


async def test_a_session_is_found_after_a_restart(place: Place) -> None:
    async with place.open(ManualClock()) as store:
        await log_in(store, role="viewer")
    async with place.open(ManualClock()) as store:
        assert await find(store) == LoginSession("viewer", ADDRESS)
        assert await find(store, 2) is None


async def test_a_closed_session_is_unknown(store: Store) -> None:
    await log_in(store, 1)
    await log_in(store, 2)
    await store.sessions.close(identifier(1))
    await store.sessions.close(identifier(1))
    assert await find(store, 1) is None
    assert await find(store, 2) is not None


async def test_only_digests_of_the_identifier_and_the_token_are_stored(place: Place) -> None:
    secret = b"the-identifier-of-32-random-byte"
    async with place.open(ManualClock()) as store:
        token = store.sessions.fingerprint(TOKEN)
        await store.sessions.open(
            secret, role="admin", fingerprint=token, address=None, now_ms=NOW_MS
        )
        assert digests(place) == [sha256(secret).digest()]
        ((kept,),) = place.rows("SELECT token FROM relay.sessions")
        assert TOKEN.encode() not in bytes(kept)


async def test_a_changed_token_ends_its_sessions_only(store: Store) -> None:
    await log_in(store, 1, token="old")
    await log_in(store, 2, token="viewers", role="viewer")
    current = ("new", "viewers")
    assert await find(store, 1, tokens=current) is None
    assert await find(store, 2, tokens=current) is not None
    assert await find(store, 1, tokens=("old", "viewers")) is not None
    assert await find(store, 2, tokens=()) is None


async def test_fingerprints_are_those_of_one_store(place: Place, other_place: Place) -> None:
    async with place.open(ManualClock()) as store, other_place.open(ManualClock()) as other:
        mine = store.sessions.fingerprint(TOKEN)
        assert mine not in {sha256(TOKEN.encode()).digest(), other.sessions.fingerprint(TOKEN)}
        assert mine != store.sessions.fingerprint(f"{TOKEN} ")
        assert store.sessions.fingerprint("\udcff") != store.sessions.fingerprint("ü")
    async with place.open(ManualClock()) as store:
        assert store.sessions.fingerprint(TOKEN) == mine


async def test_a_session_is_that_of_all_relays(postgres_place: PostgresPlace) -> None:
    clock = ManualClock()
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        await log_in(one)
        assert await find(other) == LoginSession("admin", ADDRESS)
        await other.sessions.close(identifier(1))
        assert await find(one) is None


async def test_logins_on_several_relays_at_once_all_succeed(postgres_place: PostgresPlace) -> None:
    clock = ManualClock()
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        for number in range(100):
            await log_in(one, number)
        later_ms = NOW_MS + IDLE_MS + 1
        stores = (one, other)
        await asyncio.gather(
            *(log_in(stores[n % 2], 1000 + n, at_ms=later_ms) for n in range(2 * SESSIONS_MAX))
        )
        assert len(digests(postgres_place)) <= SESSIONS_MAX + 1


async def test_a_session_ends_when_it_is_idle_for_too_long(store: Store) -> None:
    await log_in(store)
    assert await find(store, at_ms=NOW_MS + IDLE_MS) is not None
    assert await find(store, at_ms=NOW_MS + IDLE_MS + 1) is None


async def test_a_used_session_ends_at_its_age(store: Store) -> None:
    await log_in(store)
    for later_ms in range(0, AGE_MS + 1, IDLE_MS // 2):
        await store.sessions.seen(identifier(1), now_ms=NOW_MS + later_ms)
    end_ms = NOW_MS + AGE_MS
    assert await find(store, at_ms=end_ms) is not None
    assert await find(store, at_ms=end_ms + 1) is None


async def test_a_request_is_noted_once_a_minute(store: Store, place: Place) -> None:
    def seen_ms() -> int:
        ((at_ms,),) = place.rows("SELECT seen_at FROM relay.sessions")
        return int(at_ms)

    await log_in(store)
    for at_ms in range(NOW_MS, NOW_MS + MINUTE_MS, 1000):
        await store.sessions.seen(identifier(1), now_ms=at_ms)
    assert seen_ms() == NOW_MS
    for at_ms in (NOW_MS + MINUTE_MS, NOW_MS + MINUTE_MS + 1):
        await store.sessions.seen(identifier(1), now_ms=at_ms)
    assert seen_ms() == NOW_MS + MINUTE_MS
    assert await find(store, at_ms=NOW_MS + MINUTE_MS + IDLE_MS) is not None
    assert await find(store, at_ms=NOW_MS + MINUTE_MS + IDLE_MS + 1) is None


async def test_a_request_does_not_revive_an_ended_session(store: Store, place: Place) -> None:
    await log_in(store)
    late_ms = NOW_MS + IDLE_MS + 1
    await store.sessions.seen(identifier(1), now_ms=late_ms)
    await store.sessions.seen(identifier(2), now_ms=late_ms)
    assert await find(store, at_ms=late_ms) is None
    assert len(digests(place)) == 1


async def test_a_login_removes_expired_sessions(store: Store, place: Place) -> None:
    await log_in(store, 1)
    await log_in(store, 2, at_ms=NOW_MS + IDLE_MS)
    await log_in(store, 3, at_ms=NOW_MS + IDLE_MS + 1)
    assert set(digests(place)) == {sha256(identifier(number)).digest() for number in (2, 3)}


async def test_the_sessions_seen_longest_ago_make_room(store: Store, place: Place) -> None:
    for number in range(SESSIONS_MAX):
        await log_in(store, number, at_ms=NOW_MS + number)
    await store.sessions.seen(identifier(0), now_ms=NOW_MS + MINUTE_MS)
    for number in (SESSIONS_MAX, SESSIONS_MAX + 1):
        await log_in(store, number, at_ms=NOW_MS + MINUTE_MS)
    assert len(digests(place)) == SESSIONS_MAX
    found = {
        number: await find(store, number, at_ms=NOW_MS + MINUTE_MS) is not None
        for number in (0, 1, 2, 3, SESSIONS_MAX, SESSIONS_MAX + 1)
    }
    assert found == {0: True, 1: False, 2: False, 3: True, 200: True, 201: True}


async def test_a_viewers_logins_end_no_session_of_an_administrator(store: Store) -> None:
    await log_in(store, 0, role="admin")
    for number in range(1, SESSIONS_MAX + 2):
        await log_in(store, number, role="viewer", at_ms=NOW_MS + number)
    assert await find(store, 0, at_ms=NOW_MS + SESSIONS_MAX) is not None
    assert await find(store, 1, at_ms=NOW_MS + SESSIONS_MAX) is None


async def test_a_login_succeeds_while_the_clock_stands_still(store: Store, place: Place) -> None:
    for number in range(SESSIONS_MAX + 50):
        await log_in(store, number)
        assert await find(store, number) is not None
    assert len(digests(place)) == SESSIONS_MAX


@pytest.mark.parametrize(("back_ms", "lives"), [(MINUTE_MS, True), (MINUTE_MS + 1, False)])
async def test_a_clock_set_back_by_more_than_a_minute_ends_sessions(
    store: Store, place: Place, back_ms: int, *, lives: bool
) -> None:
    await log_in(store, 1)
    early_ms = NOW_MS - back_ms
    await store.sessions.seen(identifier(1), now_ms=early_ms)
    assert (await find(store, 1, at_ms=early_ms) is not None) == lives
    await log_in(store, 2, at_ms=early_ms)
    assert await find(store, 2, at_ms=early_ms) is not None
    assert len(digests(place)) == (2 if lives else 1)


def client(number: int, role: Role = "admin", *, at_ms: int = NOW_MS) -> KnownClient:
    return KnownClient(identifier(number), role, at_ms)


async def known(store: Store, *, at_ms: int = NOW_MS) -> set[KnownClient]:
    return set(await store.sessions.remembered(now_ms=at_ms))


async def test_known_clients_are_found_after_a_restart(place: Place) -> None:
    clients = [client(1), client(2, "viewer")]
    async with place.open(ManualClock()) as store:
        assert await known(store) == set()
        await store.sessions.remember(clients, now_ms=NOW_MS)
    async with place.open(ManualClock()) as store:
        assert await known(store) == set(clients)


async def test_a_known_client_keeps_its_higher_role_and_its_later_time(store: Store) -> None:
    for each in (client(1, at_ms=NOW_MS), client(1, "viewer", at_ms=NOW_MS - 1)):
        await store.sessions.remember([each], now_ms=NOW_MS)
    assert await known(store) == {client(1)}


async def test_known_clients_are_forgotten_by_their_age_and_by_their_number(
    store: Store, place: Place
) -> None:
    later_ms = NOW_MS + KNOWN_MS
    old = [client(n, at_ms=NOW_MS + n) for n in range(2)]
    viewers = [client(1_000 + n, "viewer", at_ms=later_ms + n) for n in range(KNOWN_MAX + 5)]
    await store.sessions.remember(old, now_ms=NOW_MS)
    assert await known(store, at_ms=later_ms) == {old[1]}
    await store.sessions.remember(viewers, now_ms=later_ms)
    assert await known(store, at_ms=later_ms) == {old[1], *viewers[5:]}
    assert len(place.rows("SELECT mark FROM relay.known_clients")) == 1 + KNOWN_MAX


async def test_relays_that_know_the_same_clients_do_not_wait_for_each_other(
    postgres_place: PostgresPlace,
) -> None:
    clock, clients = ManualClock(), [client(n) for n in range(50)]
    async with postgres_place.open(clock) as one, postgres_place.open(clock) as other:
        await asyncio.gather(
            *(
                store.sessions.remember(each, now_ms=NOW_MS)
                for store, each in ((one, clients), (other, clients[::-1]))
                for _ in range(10)
            )
        )
        assert await known(one) == await known(other) == set(clients)
