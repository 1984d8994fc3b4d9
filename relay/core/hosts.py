"""Host names in requests: a name that a stranger points at this machine must not reach it."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

Scheme = Literal["http", "https"]

_NAME = r"(?=.{1,254}(?::|\Z))[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?"
_AUTHORITY = re.compile(rf"(\[[0-9a-f:.]{{2,45}}\]|{_NAME})(?::([0-9]{{0,5}}))?")
_DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}
_PORT_MAX = 65535


class HostHeader(msgspec.Struct, frozen=True):
    """A parsed Host header."""

    written: str
    """In lower case, without the port, as it stands in an Origin."""
    name: str
    """Without brackets and trailing dot; addresses in their shortest form."""
    port: int | None
    """None for the default port."""

    @property
    def is_loopback(self) -> bool:
        address = _address(self.name)
        return self.name == "localhost" or (address is not None and address.is_loopback)

    @property
    def is_address(self) -> bool:
        """Whether it is an address: a stranger could point a name here."""
        return _address(self.name) is not None

    def port_of(self, scheme: Scheme) -> int:
        return self.port or _DEFAULT_PORTS[scheme]

    def origin(self, scheme: Scheme) -> str:
        """Return the origin of a page of this host, as a browser writes it."""
        port = self.port_of(scheme)
        suffix = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
        return f"{scheme}://{self.written}{suffix}"


def parse_host(text: str) -> HostHeader | None:
    """Parse a Host header; None if it is malformed."""
    match = _AUTHORITY.fullmatch(text.lower())
    if match is None:
        return None
    name, port = host_name(match[1]), int(match[2] or 0)
    if not name or port > _PORT_MAX:
        return None
    return HostHeader(match[1], name, port or None)


def host_name(text: str) -> str:
    """Normalise a name or an address, so that equal ones can be compared as texts."""
    name = text.lower().removesuffix(".")
    if name.startswith("["):
        name = name.removeprefix("[").removesuffix("]")
    address = _address(name)
    return name if address is None else str(address)


def is_allowed(host: HostHeader, allowed: Iterable[str]) -> bool:
    return any(host.name == host_name(text) for text in allowed)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
