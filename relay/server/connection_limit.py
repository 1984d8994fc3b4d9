"""Limits on a listener's connections and on what they hold.

Those that wait for their client are evicted for new ones, because strangers could hold all of them
with half requests; one that has an operator's request under way is not.

Each connection is an open file, and a process without files left can neither accept nor send.
Anyone can make a relay hold heads and bodies, so those that are not verified yet have a limit, too.
"""

import ipaddress
import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Protocol

from relay.core.clock import Clock
from relay.telemetry import log
from relay.telemetry.metrics import Metrics

PUBLIC_BYTES = 32 << 20
ADMIN_BYTES = 8 << 20
"""Its requests have bodies of 64 KiB at most."""

UNCOUNTED_BYTES = 32 * 1024
"""What each connection may hold beside that; nearly every request fits, and costs no count."""

READ_BYTES = 8 * 1024
"""What is read from a connection at once.

All connections may have that much within one turn of the loop, before one that gave way is gone.
"""

_BODIES = 4
_SLACK = 16
"""Part of the limit that is made free at once, because looking for the largest takes time."""


class Holder(Protocol):
    """A connection that holds requests."""

    def give_way(self) -> bool:
        """Free what it holds, by closing at once; returns whether it did."""
        ...


class MemoryLimit:
    """Knows what each connection holds, for which address; the one that holds most gives way."""

    def __init__(self, total: int, *, reached: Callable[[str], None]) -> None:
        """`reached` is called with each address whose connections had to give way."""
        self.total = total
        self.buffer = memoryview(bytearray(READ_BYTES))
        """What all connections read into, one after the other."""
        self._reached = reached
        self._held: dict[Holder, tuple[str, int]] = {}
        self._by_address = Counter[str]()
        self._sum = 0

    def hold(self, connection: Holder, address: str, size: int) -> None:
        """Set what a connection holds; its own may be the one that gives way."""
        self.release(connection)
        self._held[connection] = address, size
        self._by_address[address] += size
        self._sum += size
        if self._sum > self.total:
            self._make_room()

    def release(self, connection: Holder) -> None:
        """May be called for a connection that holds nothing."""
        address, size = self._held.pop(connection, ("", 0))
        self._sum -= size
        if size:
            self._by_address[address] -= size
            if not self._by_address[address]:
                del self._by_address[address]

    def _make_room(self) -> None:
        """Close connections, the largest of the address that holds most first."""
        enough = self.total - self.total // _SLACK
        by_size = sorted(
            (
                (self._by_address[address], address, size, holder)
                for holder, (address, size) in self._held.items()
            ),
            key=lambda each: each[:3],
            reverse=True,
        )
        addresses: set[str] = set()
        for _, address, _, holder in by_size:
            if self._sum <= enough:
                break
            if holder.give_way():
                self.release(holder)
                addresses.add(address)
        for address in addresses:
            self._reached(address)


def public_bytes(max_body: int) -> int:
    """Several of the largest bodies have room, whatever a config allows."""
    return max(PUBLIC_BYTES, _BODIES * max_body)


Listener = Literal["public", "admin"]

_KEYS: Mapping[Listener, str] = {"public": "server.listen", "admin": "server.admin_listen"}

Cause = Literal["total", "address", "busy", "files", "memory"]
"""Why a connection was closed, refused or kept waiting; docs/metrics.md explains each."""

ADVICE: Mapping[Cause, str] = {
    "total": "the connection that waited longest for its client was closed; "
    "look at who opens so many (ss -tn)",
    "address": "one address holds a fourth of all; if it is a proxy, put it into trusted_proxies",
    "busy": "all connections have a request under way; new ones wait in the kernel's queue",
    "files": "raise the limit of open files (LimitNOFILE= in the unit, ulimits in Compose)",
    "memory": "requests that are not verified filled their memory; the largest of this address "
    "were cut off: limit it in the proxy",
}

PUBLIC_MAX = 1024
"""A proxy in front needs far fewer: one for each request that it has in flight."""

ADMIN_MAX = 128

HOPS_MAX = 20
"""Entries of X-Forwarded-For that are read, from the right."""

_SHARE_OF_AN_ADDRESS = 4
_IPV6_SITE_BITS = 64
"""A provider gives each customer a network of this size (RFC 6177)."""


class Evictable(Protocol):
    """A connection that can make room."""

    def evict(self) -> bool:
        """Close at once if only the client is waited for; returns whether it did."""
        ...


class ConnectionLimit:
    """Holds the connections of one listener, in the order of their last requests."""

    def __init__(
        self,
        total: int,
        *,
        memory: int = PUBLIC_BYTES,
        is_trusted: Callable[[str], bool] = lambda _: False,
        reached: Callable[..., None] = lambda _, **__: None,
    ) -> None:
        """A trusted address, such as a proxy's, may have all of `total`; others a fourth each.

        `reached` is called with the cause, and fields for a line of the log.
        """
        self.total = total
        self.memory = MemoryLimit(memory, reached=lambda address: reached("memory", client=address))
        self.per_address = max(1, total // _SHARE_OF_AN_ADDRESS)
        self._is_trusted = is_trusted
        self.reached = reached
        self._held: dict[Evictable, str] = {}
        self._counts = Counter[str]()

    def has_room(self) -> bool:
        """Whether one more may be accepted; closes one that waits for its client."""
        if len(self._held) < self.total:
            return True
        evicted = self.evict()
        self.reached("total" if evicted else "busy")
        return evicted

    def admits(self, host: str) -> bool:
        """Whether this address may have one more; closes its longest idle connection for it."""
        address = _unmapped(host)
        site = _site(address)
        if self._counts[site] < self.per_address or self._is_trusted(address):
            return True
        evicted = self.evict(site)
        self.reached("address", client=address)
        return evicted

    def site(self, host: str, forwarded: str) -> str:
        """Return the address or IPv6 site of `client`."""
        return _site(self.client(host, forwarded))

    def client(self, host: str, forwarded: str) -> str:
        """Return the address that a request came from, by its peer and its X-Forwarded-For.

        That header counts only from a trusted peer; behind it, addresses are text that may be none.
        """
        address = _unmapped(host)
        for entry in reversed(forwarded.rsplit(",", HOPS_MAX)):
            if not self._is_trusted(address):
                break
            try:
                address = _unmapped(str(ipaddress.ip_address(entry.strip())))
            except ValueError:
                break
        return address

    def evict(self, site: str | None = None) -> bool:
        """Close the connection, of any site or of one, that has waited longest for its client.

        Returns whether there was one.
        """
        for connection, its_site in self._held.items():
            if site in (None, its_site) and connection.evict():
                self.leave(connection)
                return True
        return False

    def enter(self, connection: Evictable, host: str) -> None:
        site = _site(_unmapped(host))
        self._held[connection] = site
        self._counts[site] += 1

    def used(self, connection: Evictable) -> None:
        """Record a request: all other connections have been idle for longer."""
        site = self._held.pop(connection, None)
        if site is not None:
            self._held[connection] = site

    def leave(self, connection: Evictable) -> None:
        """May be called more than once."""
        site = self._held.pop(connection, None)
        if site is None:
            return
        self._counts[site] -= 1
        if not self._counts[site]:
            del self._counts[site]


def limited(
    listener: Listener,
    total: int,
    *,
    memory: int,
    is_trusted: Callable[[str], bool],
    metrics: Metrics,
    clock: Clock,
) -> ConnectionLimit:
    """Return a limit that is counted and logged when reached, at most one line a minute."""
    sampled = log.Sampled(clock, limit=1)

    def reached(cause: Cause, **fields: Any) -> None:
        metrics.connection_limited(listener, cause)
        sampled.line(
            "listener.limit_reached",
            reason=cause,
            key=_KEYS[listener],
            count=total,
            advice=ADVICE[cause],
            **fields,
        )

    return ConnectionLimit(total, memory=memory, is_trusted=is_trusted, reached=reached)


def file_limit() -> int:
    """Raise the limit of open files as far as the process may, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def public_total(files: int) -> int:
    """Half of the files at most: the store, the sinks and the admin listener need the rest."""
    return max(1, min(PUBLIC_MAX, files // 2))


def admin_total(files: int) -> int:
    return max(1, min(ADMIN_MAX, files // 8))


def _unmapped(host: str) -> str:
    """Return an IPv4 address that came over an IPv6 socket as IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host


def _site(address: str) -> str:
    if ":" not in address:
        return address
    network = ipaddress.IPv6Network((address.partition("%")[0], _IPV6_SITE_BITS), strict=False)
    return str(network)
