"""Addresses of a request: its URL as the browser sees it, its sender, and where it may lead.

Forwarding headers count only if a trusted proxy sent them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from relay.admin.clients import Client, client_of
from relay.core.config_values import Network
from relay.core.errors import RelayError
from relay.core.hosts import HostHeader, Scheme, parse_host

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PROXY_HEADERS = frozenset({"forwarded", "via", "x-real-ip"})

RefusalReason = Literal["host", "host_header", "forwarded_proto", "forwarded_prefix"]

TARGET_MAX = 2000

_MARK = "again=1"
_PRINTABLE = re.compile(r"/(?!/)[!-\[\]-~]*")  # ASCII without space and backslash
_SENT_ANYWAY = frozenset({"none", "same-origin"})


@dataclass(eq=False, repr=False)
class EarlyRefusal(RelayError):
    """The request is refused before the login: its host or forwarding headers are invalid."""

    status: int
    reason: RefusalReason
    """For the log."""
    text: str
    """One sentence for the response; repeats nothing of the request."""


class BrowserAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a request as the browser sees it, and the request's sender."""

    scheme: Scheme
    host: HostHeader
    prefix: str
    """Path under which a proxy serves the relay: "" or like "/relay"; the `root_path`."""
    path: str
    """Path below the prefix, percent-encoded as received."""
    sender: Client
    is_direct_from_loopback: bool
    """From this machine, to a loopback name, and through no proxy that says it is one."""

    @property
    def client(self) -> str | None:
        """Address of the browser's machine; None if it is unknown."""
        address = self.sender.address
        return None if address is None else str(address)

    @property
    def origin(self) -> str:
        return self.host.origin(self.scheme)

    def to(self, path: str) -> str:
        """Return a path of the page as the browser has to request it."""
        return self.prefix + path


def place_of(request: Request, *, trusted_proxies: Sequence[Network]) -> BrowserAddress:
    """Read the addresses of a request; raises EarlyRefusal for ambiguous headers."""
    sender = client_of(request, trusted_proxies=trusted_proxies)
    host, prefix = _host(request), _prefix(request) if sender.is_proxied else ""
    return BrowserAddress(
        scheme=_scheme(request) if sender.is_proxied else "http",
        host=host,
        prefix=prefix,
        path=_path(request, prefix),
        sender=sender,
        is_direct_from_loopback=(
            sender.peer is not None
            and sender.peer.is_loopback
            and host.is_loopback
            and not _passed_a_proxy(request)
        ),
    )


def _host(request: Request) -> HostHeader:
    values = request.headers.getlist("host")
    host = parse_host(values[0]) if len(values) == 1 else None
    if host is None:
        raise EarlyRefusal(400, "host_header", "The request needs exactly one valid Host header.")
    return host


def _scheme(request: Request) -> Scheme:
    match [value.lower() for value in request.headers.getlist("x-forwarded-proto")]:
        case [] | ["http"]:
            return "http"
        case ["https"]:
            return "https"
    # The left-most of several may be the client's own, the right-most another proxy's.
    raise EarlyRefusal(
        400, "forwarded_proto", "The proxy must set X-Forwarded-Proto once, to http or https."
    )


def _prefix(request: Request) -> str:
    values = request.headers.getlist("x-forwarded-prefix")
    if not values:
        return ""
    prefix = values[0].removesuffix("/")
    is_path = _PREFIX.fullmatch(prefix) and not {".", ".."} & set(prefix.split("/"))
    if len(values) > 1 or not (prefix == "" or is_path):
        # Without it, the session's cookie would go to the neighbours' paths too.
        raise EarlyRefusal(
            400, "forwarded_prefix", "The proxy must set X-Forwarded-Prefix once, to a plain path."
        )
    return prefix


def _path(request: Request, prefix: str) -> str:
    raw: bytes | None = request.scope.get("raw_path")
    path = quote(request.scope["path"]) if raw is None else raw.decode("latin-1")
    # Some proxies strip the prefix, others leave it in place.
    return path.removeprefix(prefix) or "/" if f"{path}/".startswith(f"{prefix}/") else path


def _passed_a_proxy(request: Request) -> bool:
    names = {name.lower() for name in request.headers}
    # nginx passes a request on as HTTP/1.0, and may be set up to add none of these headers.
    return (
        request.scope.get("http_version") == "1.0"
        or not names.isdisjoint(_PROXY_HEADERS)
        or any(name.startswith("x-forwarded-") for name in names)
    )


def own_path(text: str) -> str:
    r"""Return a path and query below the prefix that are safe to go to, else "/".

    Browsers read `//host`, `/\host` and what follows a tab as another site (Prometheus,
    CVE-2021-29622), and `..` leads to the neighbours behind the same proxy.
    """
    if len(text) > TARGET_MAX or _PRINTABLE.fullmatch(text) is None:
        return "/"
    path, _, query = text.partition("#")[0].partition("?")
    if {".", ".."} & set(path.lower().replace("%2e", ".").split("/")):
        return "/"
    kept = "&".join(part for part in query.split("&") if part != _MARK)
    return f"{path}?{kept}" if kept else path


def own_target(request: Request, place: BrowserAddress) -> str:
    """Return the path and query of a request, below the prefix."""
    return own_path(f"{place.path}?{request.scope['query_string'].decode('latin-1')}")


def refresh_target(request: Request, place: BrowserAddress) -> str | None:
    """Return the URL to refresh to when a request has no cookie, or None.

    The browser sends no SameSite=Strict cookie with a link from another site, but does so once our
    own page refreshes. The mark in the URL prevents a loop.
    """
    sites = set(request.headers.getlist("sec-fetch-site"))
    if request.method != "GET" or "again" in request.query_params or sites & _SENT_ANYWAY:
        return None
    target = own_target(request, place)
    return place.to(f"{target}{'&' if '?' in target else '?'}{_MARK}")
