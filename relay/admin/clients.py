"""Where a request of the admin listener comes from; a header counts only from a trusted proxy."""

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from starlette.requests import HTTPConnection

from relay.core.config_values import Network

HOPS_MAX = 20
"""Entries of X-Forwarded-For that are read, from the right."""

_ENTRY = re.compile(r"\[([^\]]+)\](?::[0-9]+)?|([0-9.]+)(?::[0-9]+)?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


LOOPBACK = "loopback"


class Client(msgspec.Struct, frozen=True):
    """The sender of a request."""

    peer: Address | None
    """Of the connection; None if it is unknown."""
    proxy: str = ""
    """Entry of `trusted_proxies` that the peer is in; `LOOPBACK` for all of this machine, whose
    programs have many loopback addresses; empty if the peer is no trusted proxy."""
    forwarded: Address | None = None
    """The last forwarded address that belongs to no trusted proxy: a trusted one has added it. The
    sender may have written those before it."""

    @property
    def is_proxied(self) -> bool:
        return bool(self.proxy)

    @property
    def address(self) -> Address | None:
        return self.forwarded or self.peer


def client_of(request: HTTPConnection, *, trusted_proxies: Sequence[Network]) -> Client:
    """Read the sender of a request."""
    peer = None if request.client is None else _parse(request.client.host)
    networks = _networks(tuple(trusted_proxies))
    entry = None if peer is None else _entry(networks, peer)
    if peer is None or entry is None:
        return Client(peer)
    proxy = LOOPBACK if peer.is_loopback else str(entry)
    return Client(peer, proxy, forwarded=_forwarded(request, networks))


def _forwarded(request: HTTPConnection, networks: _Networks) -> Address | None:
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    client = None
    for entry in reversed(forwarded.rsplit(",", HOPS_MAX)):
        address = _parse(_bare(entry.strip()))
        if address is None:
            break
        client = address
        if _entry(networks, address) is None:
            break
    return client


def _bare(entry: str) -> str:
    """Remove the port that some proxies append, and the brackets of IPv6."""
    match = _ENTRY.fullmatch(entry)
    return entry if match is None else match[1] or match[2]


def _parse(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=4)
def _networks(trusted: tuple[Network, ...]) -> _Networks:
    return tuple(ipaddress.ip_network(network) for network in trusted)


def _entry(networks: _Networks, address: Address) -> object | None:
    return next((network for network in networks if address in network), None)
