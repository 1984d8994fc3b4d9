"""The store's own random keys, so that digests are comparable only within one store."""

import hmac
import secrets

from relay.core.event import folded
from relay.store.sqlite.driver import sqlite3

KEY_BYTES = 32

_KEY = "SELECT value FROM keys WHERE name = ?"
_MAKE_KEY = "INSERT INTO keys VALUES (?, ?) ON CONFLICT DO NOTHING"


def key(db: sqlite3.Connection, name: str) -> bytes:
    """Return the key with a name, created on first use."""
    db.execute(_MAKE_KEY, (name, secrets.token_bytes(KEY_BYTES)))
    value: bytes = db.execute(_KEY, (name,)).fetchone()[0]
    return value


class PersonDigests:
    """Computes keyed digests of e-mail addresses, equal for all spellings of one address."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, db: sqlite3.Connection) -> "PersonDigests":
        """Use the key of a store."""
        return cls(key(db, "people"))

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

    @classmethod
    def of(cls, db: sqlite3.Connection) -> "TokenDigests":
        """Use the key of a store."""
        return cls(key(db, "sessions"))

    def digest(self, token: str) -> bytes:
        """Return the HMAC-SHA256 of the token."""
        return hmac.digest(self._key, token.encode(errors="surrogatepass"), "sha256")
