"""The limits of wrong tokens."""

import hashlib
import ipaddress
import itertools
from collections.abc import Collection, Sequence

import pytest
from starlette.requests import Request

from relay.admin import auth
from relay.admin.auth import ADDRESS, KNOWN, NETWORK, PROXY, TOTAL, GuessLimits, KnownClients
from relay.admin.clients import Client, client_of
from relay.config import ServerSettings
from relay.store.sessions import KNOWN_MAX, KnownClient
from tests.conftest import ManualClock

tokens = (f"guess-{number}" for number in itertools.count())


class Sessions:
    """A store that keeps all known clients."""

    def __init__(self) -> None:
        self.clients: dict[bytes, KnownClient] = {}

    def fingerprint(self, token: str) -> bytes:
        return hashlib.sha256(token.encode()).digest()

    async def remember(self, clients: Collection[KnownClient], *, now_ms: int) -> None:
        del now_ms
        self.clients |= {each.mark: each for each in clients}

    async def remembered(self, *, now_ms: int) -> Sequence[KnownClient]:
        del now_ms
        return list(self.clients.values())


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def known(sessions: Sessions, clock: ManualClock) -> KnownClients:
    return KnownClients(sessions, clock)  # type: ignore[arg-type]


@pytest.fixture
def limits(clock: ManualClock, known: KnownClients) -> GuessLimits:
    return GuessLimits(clock, known)


def direct(address: str) -> Client:
    return Client(ipaddress.ip_address(address))


def through(proxy: str, address: str) -> Client:
    head = [(b"x-forwarded-for", address.encode())]
    request = Request({"type": "http", "headers": head, "client": (proxy, 1)})
    trusted = (*ServerSettings().trusted_proxies, "127.0.0.0/8", "10.0.0.1")
    return client_of(request, trusted_proxies=trusted)  # type: ignore[arg-type]


def fail(limits: GuessLimits, client: Client) -> bool:
    """Try another wrong token; returns whether it was looked at."""
    taken = limits.take(client, next(tokens))
    if not taken.wait_s:
        limits.wrong(taken)
    return not taken.wait_s


def succeed(limits: GuessLimits, client: Client, browser: bytes | None = None) -> int:
    """Try the right token; returns the time to wait."""
    taken = limits.take(client, "right", browser=browser)
    if not taken.wait_s:
        limits.right(taken, "admin", browser=browser)
    return taken.wait_s


def strangers() -> list[Client]:
    return [direct(f"198.{n % 200}.{n // 200}.1") for n in range(1_000)]


def test_five_tries_are_free_then_one_comes_every_30_s(
    limits: GuessLimits, clock: ManualClock
) -> None:
    client = direct("192.0.2.7")
    assert [fail(limits, client) for _ in range(6)] == [True] * 5 + [False]
    assert succeed(limits, client) == 30
    clock.ms += 29_500
    assert succeed(limits, client) == 1
    clock.ms += 500
    assert succeed(limits, client) == 0


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8:0:1::7", "2001:db8:0:1:ffff::8", True),
        ("2001:db8:0:1::7", "2001:db8:0:2::7", False),
    ],
)
def test_of_ipv6_a_customers_network_is_one_address(
    limits: GuessLimits, first: str, second: str, is_one: bool
) -> None:
    while fail(limits, direct(first)):
        pass
    assert (succeed(limits, direct(second)) > 0) == is_one


@pytest.mark.parametrize(
    "addresses",
    [[f"192.0.2.{n}" for n in range(200)], [f"2001:db8:0:{n:x}::7" for n in range(200)]],
)
def test_a_network_has_twenty_tries_and_others_do_not_wait_for_it(
    limits: GuessLimits, addresses: list[str]
) -> None:
    assert sum(fail(limits, direct(address)) for address in addresses) == NETWORK.tries
    assert succeed(limits, direct("203.0.113.1")) == 0


def test_what_names_addresses_at_a_proxy_takes_no_tries_of_others(limits: GuessLimits) -> None:
    clients = [through("127.0.0.1", f"198.{n}.0.1") for n in range(200)]
    assert sum(fail(limits, client) for client in clients) == PROXY.tries
    assert succeed(limits, direct("198.1.0.1")) == 0
    assert succeed(limits, direct("127.0.0.1")) == 0
    assert succeed(limits, through("10.0.0.1", "198.1.0.1")) == 0


def test_strangers_try_two_tokens_a_second_together(
    limits: GuessLimits, clock: ManualClock
) -> None:
    assert sum(fail(limits, client) for client in strangers()) == TOTAL.tries
    clock.ms += 10_000
    assert sum(fail(limits, client) for client in strangers()) == 20


@pytest.mark.parametrize("operator", [direct("198.0.0.1"), through("127.0.0.1", "198.0.0.1")])
def test_who_was_right_lately_waits_for_no_stranger(
    limits: GuessLimits, clock: ManualClock, operator: Client
) -> None:
    assert succeed(limits, operator) == 0
    clock.ms += 29 * 86_400_000
    neighbours = [direct(f"198.0.0.{n}") for n in range(2, 200)]
    proxied = [through("127.0.0.1", f"198.{n}.0.1") for n in range(1, 200)]
    for client in [*neighbours, *proxied, *strangers()[1:]]:
        fail(limits, client)
        assert succeed(limits, operator) == 0


def test_who_was_right_lately_guesses_no_faster_than_one_token_in_5_s(
    limits: GuessLimits, clock: ManualClock
) -> None:
    client = direct("192.0.2.7")
    succeed(limits, client)
    assert sum(fail(limits, client) for _ in range(200)) == KNOWN.tries
    assert succeed(limits, client) == 5
    clock.ms += 10_000
    assert sum(fail(limits, client) for _ in range(200)) == 2


def test_a_known_browser_does_not_wait_for_what_uses_up_its_address(limits: GuessLimits) -> None:
    operator, browser = through("127.0.0.1", "192.0.2.7"), b"its cookie"
    assert succeed(limits, operator, browser) == 0
    while fail(limits, operator):
        pass
    assert succeed(limits, operator) > 0
    assert succeed(limits, operator, browser) == 0
    assert succeed(limits, through("127.0.0.1", "192.0.2.8"), browser) == 0


def test_a_cookie_that_no_login_has_set_is_no_browser(limits: GuessLimits) -> None:
    client = direct("192.0.2.7")
    tries = [limits.take(client, next(tokens), browser=bytes([n])).wait_s for n in range(10)]
    assert tries.count(0) == ADDRESS.tries


def test_a_program_beside_a_proxy_leaves_tries_to_those_who_come_without_it(
    limits: GuessLimits,
) -> None:
    peers = ["::1", *(f"127.0.0.{n}" for n in range(1, 200))]
    clients = [through(peer, f"198.{n}.0.1") for n, peer in enumerate(peers)]
    assert sum(fail(limits, client) for client in clients) == PROXY.tries
    assert succeed(limits, direct("203.0.113.1")) == 0
    assert succeed(limits, through("10.0.0.1", "203.0.113.1")) == 0


async def test_who_was_right_lately_is_known_after_a_restart_and_at_other_relays(
    sessions: Sessions, known: KnownClients, limits: GuessLimits, clock: ManualClock
) -> None:
    operator, browser = through("127.0.0.1", "198.1.0.1"), b"its cookie"
    succeed(limits, operator, browser)
    await known.exchange()
    other = KnownClients(sessions, clock)  # type: ignore[arg-type]
    await other.exchange()
    restarted = GuessLimits(clock, other)
    for number in range(2, 200):
        fail(restarted, through("127.0.0.1", f"198.{number}.0.1"))
    assert succeed(restarted, through("127.0.0.1", "198.0.0.1")) > 0
    assert succeed(restarted, operator) == 0
    assert succeed(restarted, through("127.0.0.1", "203.0.113.9"), browser) == 0
    assert all(b"198.1" not in mark for mark in sessions.clients)


def test_a_wrong_token_that_comes_again_takes_no_try(limits: GuessLimits) -> None:
    client = direct("192.0.2.7")
    for _ in range(100):
        taken = limits.take(client, "of a forgotten script")
        assert taken.wait_s == 0
        limits.wrong(taken)
    assert succeed(limits, client) == 0


def test_a_right_token_returns_its_try_and_no_other(limits: GuessLimits) -> None:
    client = direct("192.0.2.7")
    fail(limits, client)
    free_at = dict(limits._free_at)
    succeed(limits, client)
    assert limits._free_at == free_at


def test_what_is_remembered_is_bounded(
    limits: GuessLimits, known: KnownClients, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "REPEATED_MAX", 10)
    for number in range(5_000):
        clock.ms += 500
        client = direct(str(ipaddress.IPv4Address(number * 256)))
        fail(limits, client)
        succeed(limits, client)
    assert len(limits._free_at) <= 2 * auth._SWEEP_AT
    assert (len(known._known), len(limits._wrong)) == (KNOWN_MAX, 10)
