"""Keyed digests of addresses and tokens, which are comparable only within one store."""

import hmac

from relay.core.event import folded

KEY_BYTES = 32

PEOPLE, SESSIONS = "people", "sessions"
"""Names of the keys, which a store creates on first use."""


class PersonDigests:
    """Computes keyed digests of e-mail addresses, equal for all spellings of one address."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def digest(self, address: str) -> bytes:
        """Return the HMAC-SHA256 of the folded address."""
        text = folded(address.strip()).encode(errors="surrogatepass")
        return hmac.digest(self._key, text, "sha256")

    def number(self, address: str) -> int:
        """Return 63 bits of the digest, for tables with many rows."""
        return int.from_bytes(self.digest(address)[:8], "big") >> 1


class TokenDigests:
    """Computes keyed digests of the tokens that open sessions."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def digest(self, token: str) -> bytes:
        """Return the HMAC-SHA256 of the token."""
        return hmac.digest(self._key, token.encode(errors="surrogatepass"), "sha256")
