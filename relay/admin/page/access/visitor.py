"""The person before the page: their tokens and cookies, and the proof that a form is theirs."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from relay.admin.page.access.address import BrowserAddress
from relay.core.config_values import Secret
from relay.store.sessions import KNOWN_MS, Role

IDENTIFIER_BYTES = 32

_IDENTIFIER = re.compile(rf"[0-9a-f]{{{2 * IDENTIFIER_BYTES}}}")


class Cookie(msgspec.Struct, frozen=True):
    """Name and attributes of a cookie that holds an identifier."""

    name: str
    path: str
    is_secure: bool
    age_s: int | None = None
    """None: until the browser is closed."""

    def read(self, request: Request) -> bytes | None:
        """Return the identifier; None without one, or with several."""
        values = {value for name, value in _pairs(request) if name == self.name}
        value = values.pop() if len(values) == 1 else ""
        return bytes.fromhex(value) if _IDENTIFIER.fullmatch(value) else None

    def set(self, identifier: bytes) -> str:
        """Return a Set-Cookie header."""
        age = "" if self.age_s is None else f"; Max-Age={self.age_s}"
        return f"{self._header(identifier.hex())}{age}"

    def delete(self) -> str:
        """Return a Set-Cookie header that removes the cookie."""
        return f"{self._header('')}; Max-Age=0"

    def of_browser(self) -> "Cookie":
        """Return the cookie by which a browser is known after its session."""
        return replace(self, name=f"{self.name}-known", age_s=KNOWN_MS // 1000)

    def _header(self, value: str) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.name}={value}; Path={self.path}; HttpOnly; SameSite=Strict{secure}"


def session_cookie(place: BrowserAddress) -> Cookie | None:
    """Return the cookie of the session; None if anybody on the way could read it."""
    if place.scheme == "https" and not place.prefix:
        return Cookie("__Host-relay", "/", is_secure=True)
    if place.scheme == "https":
        # `Path=/` would send it to the neighbours behind the same proxy (Airflow, CVE-2026-28779).
        return Cookie("__Secure-relay", place.prefix, is_secure=True)
    if place.host.is_loopback:
        # Not secure, because Safari refuses that over http even here. The port is part of the
        # name, because cookies ignore ports, and two relays would log each other out.
        name = f"relay-{place.host.port_of('http')}"
        return Cookie(name, place.prefix or "/", is_secure=False)
    return None


def _pairs(request: Request) -> list[tuple[str, str]]:
    parts = ";".join(request.headers.getlist("cookie")).split(";")
    pairs = (part.partition("=") for part in parts)
    return [(name.strip(), value.strip()) for name, _, value in pairs]


_UNSET = secrets.token_hex(32)
"""Compared in place of a missing token, so that the comparison takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A visitor who may see the page."""

    role: Role
    identifier: bytes | None = field(repr=False)
    """Of the session, a secret; None on loopback without any token."""
    address: str | None
    """Network address of the client."""

    @property
    def is_local_without_token(self) -> bool:
        return self.identifier is None

    def form_token(self) -> str:
        """Return the token that every form of this session carries; "" without a session."""
        return "" if self.identifier is None else form_token(self.identifier)


CheckFailure = Literal["origin", "fetch_site", "session", "form_token", "role"]
"""The check that a form failed, for the log only."""


def form_token(identifier: bytes) -> str:
    return hmac.new(identifier, b"form", hashlib.sha256).hexdigest()


def check_sender(request: Request, place: BrowserAddress) -> CheckFailure | None:
    """Check that the browser sent the form from a page of the same origin."""
    if request.headers.getlist("origin") != [place.origin]:
        return "origin"
    # Browsers send it only over TLS and to loopback, so it can refuse, but not replace the Origin.
    if any(site != "same-origin" for site in request.headers.getlist("sec-fetch-site")):
        return "fetch_site"
    return None


def check_token(identifier: bytes | None, presented: str) -> CheckFailure | None:
    """Check the form's token against the session's."""
    if identifier is None:
        return "session"
    expected = form_token(identifier).encode()
    if not hmac.compare_digest(expected, presented.encode("utf-8", "surrogatepass")):
        return "form_token"
    return None


class AdminTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the running config."""

    admin: Secret | None = None
    viewer: Secret | None = None

    def __bool__(self) -> bool:
        return bool(self.by_role())

    def by_role(self) -> dict[Role, str]:
        tokens: dict[Role, Secret | None] = {"admin": self.admin, "viewer": self.viewer}
        return {role: token.reveal() for role, token in tokens.items() if token and token.reveal()}

    def role_of(self, presented: str) -> Role | None:
        """Return the role that a token opens; always compares it with both."""
        tokens = self.by_role()
        is_admin = _is_equal(presented, tokens.get("admin", _UNSET))
        is_viewer = _is_equal(presented, tokens.get("viewer", _UNSET))
        if is_admin:
            return "admin"
        return "viewer" if is_viewer else None

    def fingerprints(self, fingerprint: Callable[[str], bytes]) -> dict[Role, bytes]:
        """Return the fingerprint of each token that is set.

        It covers the role: a token that opens another role now must not keep the old one's
        sessions.
        """
        return {role: fingerprint(f"{role} {token}") for role, token in self.by_role().items()}


def _is_equal(presented: str, token: str) -> bool:
    return hmac.compare_digest(_digest(presented), _digest(token))


def _digest(text: str) -> bytes:
    # Forms may hold lone surrogates.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
