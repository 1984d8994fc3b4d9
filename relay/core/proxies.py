"""Which proxy a request goes through, by `[outbound]`, a sink's own key and the exceptions (pure).

Names and meanings are those of Prometheus and Alertmanager. No name is looked up: a network in
`no_proxy` matches addresses as they stand in URLs.
"""

import os
import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self
from urllib.parse import unquote, urlsplit

import msgspec

from relay.core.config_values import Secret

DIRECT = "direct"
"""The value of `proxy_url` that means none."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PORT_MAX = 65535
_NAME = re.compile(r"\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_HOST_AND_PORT = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?")
_SEPARATORS = re.compile(r"[,\s]+")
_VISIBLE = re.compile(r"[!-~]*")


class OutboundSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[outbound]`: the way out through a company's proxy, for all that speaks HTTP."""

    proxy_url: Secret | None = None
    """`http://host:port`, perhaps with user and password; "direct" means none."""
    no_proxy: str = ""
    """Names, suffixes, addresses and networks that are reached without the proxy."""
    proxy_from_environment: bool = False
    """Takes HTTP_PROXY, HTTPS_PROXY and NO_PROXY in place of the other two."""


def is_proxied(kind: type[msgspec.Struct]) -> bool:
    """Whether a table of this kind is about requests that may go through a proxy."""
    return any(field.type is OutboundSettings for field in msgspec.structs.fields(kind))


class _Exception(msgspec.Struct, frozen=True):
    """An entry of `no_proxy`."""

    host: IPv4Network | IPv6Network | str
    """`*` is any, `.example.com` all names below it, `example.com` these and itself, as in Go."""
    port: int | None = None
    """None for any."""

    def covers(self, host: str, port: int) -> bool:
        if self.port not in (None, port):
            return False
        address = _address(host)
        if not isinstance(self.host, str):
            return address is not None and address in self.host
        if self.host in {"*", host}:
            return True
        return address is None and host.endswith(f".{self.host.removeprefix('.')}")


class Proxies(msgspec.Struct, frozen=True):
    """The proxy for each scheme of a request's URL, and the hosts that need none."""

    by_scheme: Mapping[str, Secret] = {}
    exceptions: tuple[_Exception, ...] = ()

    @classmethod
    def of(
        cls,
        outbound: OutboundSettings,
        own: Secret | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Combine `[outbound]` with a sink's own `proxy_url`, all of them without fault."""
        chosen = own or outbound.proxy_url
        if chosen is None and outbound.proxy_from_environment:
            return cls(_of_environment(environ), tuple(_lenient(_variable("no_proxy", environ))))
        if chosen is None or chosen.reveal() == DIRECT:
            return cls()
        return cls({"http": chosen, "https": chosen}, tuple(_parse(outbound.no_proxy)))

    def url_for(self, url: str) -> str | None:
        """Return the proxy's URL, credentials included, for a request; None for none."""
        if not self.by_scheme:
            return None
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        if any(exception.covers(host, port) for exception in self.exceptions):
            return None
        proxy = self.by_scheme.get(parts.scheme)
        return None if proxy is None else proxy.reveal()


def fault_of_url(secret: Secret) -> str | None:
    """Describe why a value is no `proxy_url`, without the value."""
    text = secret.reveal()
    return None if text == DIRECT or _is_proxy(text) else EXPECTED


def fault_of_exceptions(text: str) -> str | None:
    """Describe why a value is no `no_proxy`."""
    try:
        list(_parse(text))
    except ValueError as error:
        return f"expected names, addresses or networks with commas between them, found {error}"
    return None


def unusable(environ: Mapping[str, str]) -> list[str]:
    """Name the variables that hold something else than the URL of a proxy over http."""
    return [name for name, value in _named(environ).items() if not _is_proxy(_with_scheme(value))]


def named_in(environ: Mapping[str, str]) -> list[str]:
    """Name the variables of the environment that name a proxy."""
    return list(_named(environ))


EXPECTED = (
    'expected http:// and a host, as in "http://proxy.example:3128", or "direct"; the relay speaks '
    "neither TLS nor SOCKS to a proxy"
)


def _is_proxy(text: str) -> bool:
    try:
        parts = urlsplit(text)
        credentials = unquote(f"{parts.username or ''}{parts.password or ''}", errors="strict")
        is_addressed = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_bare = parts.path in {"", "/"} and not parts.query and not parts.fragment
    is_visible = _VISIBLE.fullmatch(text) and credentials.isascii() and credentials.isprintable()
    return parts.scheme == "http" and is_addressed and is_bare and bool(is_visible)


def _parse(text: str) -> Iterator[_Exception]:
    for entry in filter(None, _SEPARATORS.split(text.strip())):
        exception = _exception(entry.lower())
        if exception is None:
            raise ValueError(entry)
        yield exception


def _lenient(text: str) -> Iterator[_Exception]:
    """Skip entries that mean nothing here: NO_PROXY has no standard."""
    entries = map(_exception, filter(None, _SEPARATORS.split(text.strip().lower())))
    return filter(None, entries)


def _exception(entry: str) -> _Exception | None:
    if (network := _network(entry)) is not None:  # also one of IPv6, without brackets
        return _Exception(network)
    split = _HOST_AND_PORT.fullmatch(entry)
    if split is None or (port := int(split[2] or 0)) > _PORT_MAX:
        return None
    if (network := _network(split[1].strip("[]"))) is not None:
        return _Exception(network, port or None)
    name = split[1].removesuffix(".")
    if name.startswith("*."):
        name = name.removeprefix("*")
    return _Exception(name, port or None) if name == "*" or _NAME.fullmatch(name) else None


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _of_environment(environ: Mapping[str, str]) -> dict[str, Secret]:
    return {
        name.lower().removesuffix("_proxy"): Secret(_with_scheme(value))
        for name, value in _named(environ).items()
    }


def _named(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name a proxy; of two spellings the lower case counts."""
    spellings = (
        next(filter(environ.get, (name, name.upper())), None)
        for name in ("http_proxy", "https_proxy")
    )
    return {name: environ[name] for name in spellings if name is not None}


def _variable(name: str, environ: Mapping[str, str]) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _with_scheme(value: str) -> str:
    """Return a URL: programs take `proxy:3128` as well."""
    return value if "://" in value else f"http://{value}"
