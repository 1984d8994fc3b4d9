"""Limits of wrong tokens on the admin listener: by address, network, proxy and in total.

Each try counts before its token is compared: if the right token passed over the limit, guessing
would be as fast as without one. The counts are in memory, and each relay of a cluster has its own.
"""

import hashlib
import ipaddress
import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from relay.admin.clients import Client
from relay.core.clock import Clock


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

KNOWN = Allowance(60, 0.5)
"""An address that was right lately, for which none of the others counts: no stranger delays it."""

KNOWN_FOR_S = 30 * 86_400.0
KNOWN_MAX = 1_000
"""Only a right token makes an address known, so that strangers displace none."""

REPEATED_MAX = 4_096
"""Wrong tokens that are remembered: one that comes again, from a forgotten script, is no guess."""

_SWEEP_AT = 1_024
_BITS = {4: (32, 24), 6: (64, 48)}
"""By IP version: what counts as one address, and as one network."""

_Key = tuple[str, ...]


class Try(msgspec.Struct, frozen=True):
    """A try, before its token is looked at."""

    wait_s: int
    """0, or the time until the next try: then the token must not be looked at."""
    client: _Key
    token: bytes
    counted: tuple[tuple[_Key, float], ...] = ()


class GuessLimits:
    """Counts the wrong tokens of the API and of the login together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._secret = os.urandom(32)
        self._free_at: dict[_Key, float] = {}
        """Times at which all tries are free again: by address, network, proxy and in total."""
        self._sweep_at = _SWEEP_AT
        self._known: OrderedDict[_Key, float] = OrderedDict()
        """By address: the time of its last right token."""
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    def take(self, client: Client, token: str | bytes) -> Try:
        """Take a try, which ends with `right` or `wrong` unless it has to wait."""
        now_s, places = self._clock.monotonic(), _places(client)
        raw = token if isinstance(token, bytes) else token.encode("utf-8", "surrogatepass")
        # Under a key, because nothing in memory should help to guess a mistyped token.
        digest = hashlib.blake2b(raw, key=self._secret, digest_size=16).digest()
        if digest in self._wrong:
            return Try(0, places[0], digest)
        counted = [*self._counted(places, now_s)]
        late_s = [
            self._free_at.get(key, 0.0) - now_s - (allowance.tries - 1) * allowance.interval_s
            for key, allowance in counted
        ]
        if (wait_s := math.ceil(max(late_s))) > 0:
            return Try(wait_s, places[0], digest)
        for key, allowance in counted:
            self._free_at[key] = max(now_s, self._free_at.get(key, 0.0)) + allowance.interval_s
        self._sweep(now_s)
        taken = tuple((key, allowance.interval_s) for key, allowance in counted)
        return Try(0, places[0], digest, taken)

    def right(self, taken: Try) -> None:
        """Return the try, and know its address from now on.

        Earlier tries stay taken, or a viewer could try any number of admin tokens.
        """
        for key, interval_s in taken.counted:
            if key in self._free_at:
                self._free_at[key] -= interval_s
        self._wrong.pop(taken.token, None)
        _put_last(self._known, taken.client, self._clock.monotonic(), at_most=KNOWN_MAX)

    def wrong(self, taken: Try) -> None:
        """Keep the try, and remember the token."""
        _put_last(self._wrong, taken.token, None, at_most=REPEATED_MAX)

    def _counted(self, places: tuple[_Key, _Key], now_s: float) -> Iterator[tuple[_Key, Allowance]]:
        address, network = places
        if now_s - self._known.get(address, -math.inf) < KNOWN_FOR_S:
            yield ("known", *address), KNOWN
            return
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


def _put_last(entries: OrderedDict[Any, Any], key: object, value: object, *, at_most: int) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > at_most:
        entries.popitem(last=False)


def _places(client: Client) -> tuple[_Key, _Key]:
    """Name the address and its network; what one proxy forwards is apart from all else."""
    proxy = str(client.peer) if client.forwarded is not None else ""
    if client.address is None:
        return (proxy, ""), (proxy, "")
    address, network = (
        (proxy, str(ipaddress.ip_network((client.address, bits), strict=False)))
        for bits in _BITS[client.address.version]
    )
    return address, network
