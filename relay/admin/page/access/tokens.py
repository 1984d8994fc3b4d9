"""The tokens that open the page, compared without leaking their lengths or contents."""

import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec

from relay.core.config_values import Secret
from relay.store.sessions import Role

_UNSET = secrets.token_hex(32)
"""Compared in place of a missing token, so that the comparison takes as long."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
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
