"""The person before the page: the tokens that open it, and the proof that a form is theirs."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.requests import Request

from relay.admin.page.access.address import BrowserAddress
from relay.core.config_values import Secret
from relay.store.sessions import Role

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
