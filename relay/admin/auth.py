"""Bearer authentication of the admin listener, and the limits of wrong tokens for API and login.

They are by address, network, proxy and in total. Each try counts before its token is compared: if
the right token passed over the limit, guessing would be as fast as without one. A client that was
right lately has a limit of its own: a browser, by its cookie, or an address. The counts are in
memory, and each relay of a cluster has its own.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.admin.clients import Client, client_of
from relay.admin.problem import problem
from relay.core.clock import Clock
from relay.core.config_values import Network, Secret
from relay.core.errors import StoreError
from relay.core.minutes import DAY_MS
from relay.server.listener import keep
from relay.store.sessions import KNOWN_MAX, KNOWN_MS, KnownClient, Role, Sessions
from relay.telemetry import log


class Allowance(msgspec.Struct, frozen=True):
    """Tries that may follow at once, and the time until each of them is free again."""

    tries: int
    interval_s: float


ADDRESS = Allowance(5, 30.0)
"""Of IPv6, a network of 64 bits is one address: each customer gets one whole."""

NETWORK = Allowance(20, 5.0)
"""An IPv4 network of 24 bits or an IPv6 one of 48, which one stranger can have whole."""

PROXY = Allowance(40, 1.0)
"""All strangers behind one trusted proxy: a program beside it can name any address."""

TOTAL = Allowance(60, 0.5)
"""All strangers; wider than the others, so that no network or proxy uses it up alone."""

KNOWN = Allowance(20, 5.0)
"""A client that was right lately, for which none of the others counts: no stranger delays it.

Who holds a viewer's token can make a hundred of them known, and guess the admin's with all.
"""

REPEATED_MAX = 4_096
"""Wrong tokens that are remembered: one that comes again, from a forgotten script, is no guess."""

_SWEEP_AT = 1_024
_BITS = {4: (32, 24), 6: (64, 48)}
"""By IP version: what counts as one address, and as one network."""

_Key = tuple[str, ...]


EXCHANGE_EVERY_S = 60.0
"""Time within which a client is known on the other relays too."""

NOTED_EVERY_MS = DAY_MS
"""Time within which a client's right tokens are noted once."""


class KnownClients:
    """Holds the marks of known clients, and exchanges them with the store.

    Only a right token makes a client known, so that strangers displace none.
    """

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._known: dict[bytes, KnownClient] = {}
        self._unsaved: dict[bytes, KnownClient] = {}
        self._noted = asyncio.Event()

    def mark(self, *parts: str) -> bytes:
        """Return the mark of a client: a digest that only this store's relays can make."""
        return self._sessions.fingerprint(" ".join(parts))

    def __contains__(self, mark: bytes) -> bool:
        known = self._known.get(mark)
        return known is not None and self._clock.now_ms() - known.right_ms < KNOWN_MS

    def note(self, mark: bytes, role: Role) -> None:
        """Know a client by this mark from now on."""
        now_ms, known = self._clock.now_ms(), self._known.get(mark)
        is_noted = known is not None and (
            now_ms - known.right_ms < NOTED_EVERY_MS and role in (known.role, "viewer")
        )
        # Full only while the store takes nothing.
        if not is_noted and len(self._unsaved) < KNOWN_MAX:
            self._known[mark] = self._unsaved[mark] = KnownClient(mark, role, now_ms)
            self._noted.set()

    async def exchange(self) -> None:
        """Store the noted clients, and read those of all relays; raises StoreError."""
        noted = list(self._unsaved.values())
        now_ms = self._clock.now_ms()
        if noted:
            await self._sessions.remember(noted, now_ms=now_ms)
        stored = {each.mark: each for each in await self._sessions.remembered(now_ms=now_ms)}
        for each in noted:
            if self._unsaved.get(each.mark) is each:
                del self._unsaved[each.mark]
        self._known = stored | self._unsaved

    async def run(self) -> None:
        """Store noted clients at once, and read those of other relays each minute."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXCHANGE_EVERY_S):
                    await self._noted.wait()
            self._noted.clear()
            # The next exchange stores the noted clients that this one has not.
            with suppress(StoreError):
                await self.exchange()


class Try(msgspec.Struct, frozen=True):
    """A try, before its token is looked at."""

    wait_s: int
    """0, or the time until the next try: then the token must not be looked at."""
    token: bytes
    mark: bytes
    """Of the address, for `KnownClients`."""
    browser: bytes | None
    """The browser's identifier, if that is known."""
    counted: tuple[tuple[_Key, float], ...] = ()


class GuessLimits:
    """Counts the wrong tokens of the API and of the login together."""

    def __init__(self, clock: Clock, known: KnownClients) -> None:
        self._clock = clock
        self._known = known
        self._secret = os.urandom(32)
        self._free_at: dict[_Key, float] = {}
        """Times at which all tries are free again: by address, network, proxy and in total."""
        self._sweep_at = _SWEEP_AT
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def take(self, client: Client, token: str | bytes, *, browser: bytes | None = None) -> Try:
        """Take a try, which ends with `right` or `wrong` unless it has to wait.

        `browser` is the identifier that it got at its last login.
        """
        now_s, places = self._clock.monotonic(), _places(client)
        mark = self._known.mark("address", *places[0])
        # Other programs can use its address, or name it beside the proxy, but have no identifier.
        if browser is not None and self._browser_mark(browser) not in self._known:
            browser = None
        taken = Try(0, self._digest(token), mark, browser)
        if taken.token in self._wrong:
            return taken
        counted = [*self._counted(taken, places)]
        late_s = [
            self._free_at.get(key, 0.0) - now_s - (allowance.tries - 1) * allowance.interval_s
            for key, allowance in counted
        ]
        if (wait_s := math.ceil(max(late_s))) > 0:
            return replace(taken, wait_s=wait_s)
        for key, allowance in counted:
            self._free_at[key] = max(now_s, self._free_at.get(key, 0.0)) + allowance.interval_s
        self._sweep(now_s)
        intervals = tuple((key, allowance.interval_s) for key, allowance in counted)
        return replace(taken, counted=intervals)

    def right(self, taken: Try, role: Role, *, browser: bytes | None = None) -> None:
        """Return the try, and know its address and browser from now on.

        Earlier tries stay taken, or a viewer could try any number of admin tokens.
        """
        for key, interval_s in taken.counted:
            if key in self._free_at:
                self._free_at[key] -= interval_s
        self._wrong.pop(taken.token, None)
        self._known.note(taken.mark, role)
        if browser is not None:
            self._known.note(self._browser_mark(browser), role)

    def wrong(self, taken: Try) -> None:
        """Keep the try, and remember the token."""
        self._wrong[taken.token] = None
        self._wrong.move_to_end(taken.token)
        if len(self._wrong) > REPEATED_MAX:
            self._wrong.popitem(last=False)

    def _digest(self, token: str | bytes) -> bytes:
        """Digest a token under a key: nothing in memory should help to guess a mistyped one."""
        raw = token if isinstance(token, bytes) else token.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(raw, key=self._secret, digest_size=16).digest()

    def _browser_mark(self, browser: bytes) -> bytes:
        return self._known.mark("browser", browser.hex())

    def _counted(self, taken: Try, places: tuple[_Key, _Key]) -> Iterator[tuple[_Key, Allowance]]:
        address, network = places
        if taken.browser is not None:
            yield ("browser", taken.browser.hex()), KNOWN
        elif taken.mark in self._known:
            yield ("known", *address), KNOWN
        else:
            yield ("address", *address), ADDRESS
            yield ("network", *network), NETWORK
            if proxy := address[0]:
                yield ("proxy", proxy), PROXY
            yield ("total",), TOTAL

    def _sweep(self, now_s: float) -> None:
        """Forget those whose tries are all free; the total allowance bounds the rest."""
        if len(self._free_at) > self._sweep_at:
            self._free_at = {key: at_s for key, at_s in self._free_at.items() if at_s > now_s}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._free_at))


def _places(client: Client) -> tuple[_Key, _Key]:
    """Name the address and its network; what a proxy forwards is apart from all else."""
    via = client.proxy if client.forwarded is not None else ""
    if client.address is None:
        return (via, ""), (via, "")
    address, network = (
        (via, str(ipaddress.ip_network((client.address, bits), strict=False)))
        for bits in _BITS[client.address.version]
    )
    return address, network


class BearerAuth:
    """Passes a request to the app, or refuses it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: Callable[[], Secret | None],
        trusted_proxies: Callable[[], Sequence[Network]],
        limits: GuessLimits,
        clock: Clock,
        open_paths: Collection[str],
    ) -> None:
        """The callables are called for every request, because a reload may change their values."""
        self._app = app
        self._token = token
        self._trusted_proxies = trusted_proxies
        self._limits = limits
        self._open_paths = open_paths
        self._log = log.Sampled(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return None
        token = self._token()
        if token is None or not token.reveal():
            return problem(404, "The admin API is off because [admin] token is not set.")
        presented = _presented(scope["headers"])
        if not presented:
            return _unauthorized()
        client = client_of(HTTPConnection(scope), trusted_proxies=self._trusted_proxies())
        taken = self._limits.take(client, presented)
        if taken.wait_s:
            self._log.line("token.refused", reason="too_many", client=str(client.address))
            return problem(
                429,
                f"The token was not looked at: too many wrong ones came from this address, or from "
                f"all strangers. Try again in {taken.wait_s} s.",
                {"Retry-After": str(taken.wait_s)},
            )
        if hmac.compare_digest(presented, token.reveal().encode()):
            self._limits.right(taken, "admin")
            keep(scope)
            return None
        self._limits.wrong(taken)
        self._log.line("token.refused", reason="wrong", client=str(client.address))
        return _unauthorized()


def _unauthorized() -> Response:
    return problem(401, "A bearer token is required.", {"WWW-Authenticate": "Bearer"})


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the token of the only Authorization header, else b"", which equals no token."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
