"""The store's own random keys: digests made with one can be compared in this store only."""

import hmac
import secrets

from relay.core.event import folded
from relay.store.sqlite.driver import sqlite3

KEY_BYTES = 32

_KEY = "SELECT value FROM keys WHERE name = ?"
_MAKE_KEY = "INSERT INTO keys VALUES (?, ?) ON CONFLICT DO NOTHING"


def key(db: sqlite3.Connection, name: str) -> bytes:
    """The key of a name, made when it is first asked for."""
    db.execute(_MAKE_KEY, (name, secrets.token_bytes(KEY_BYTES)))
    value: bytes = db.execute(_KEY, (name,)).fetchone()[0]
    return value


class PersonDigests:
    """Makes digests of e-mail addresses; two spellings of one address have the same digest."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, db: sqlite3.Connection) -> "PersonDigests":
        """Those of a store."""
        return cls(key(db, "people"))

    def digest(self, address: str) -> bytes:
        """HMAC-SHA256 of the folded address."""
        text = folded(address.strip()).encode(errors="surrogatepass")
        return hmac.digest(self._key, text, "sha256")

    def number(self, address: str) -> int:
        """63 bits of the digest, for rows of which there are many."""
        return int.from_bytes(self.digest(address)[:8], "big") >> 1
