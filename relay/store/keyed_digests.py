"""Keyed digests of addresses and tokens, which are comparable only within one store."""

import hmac
import secrets

from relay.core.event import folded
from relay.store.sql import Database, Sql

KEY_BYTES = 32

# It writes in any case, so that a key is used only once a standby has it too.
_KEY = Sql("""
INSERT INTO main.keys (name, value) VALUES (:name, :secret)
ON CONFLICT (name) DO UPDATE SET value = keys.value RETURNING value
""")


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


def key(db: Database, name: str) -> bytes:
    """Return the store's own random key with a name, created on first use."""
    values = {"name": name, "secret": secrets.token_bytes(KEY_BYTES)}
    ((value,),) = db.execute(_KEY, values).fetchall()
    return bytes(value)


def digests(db: Database) -> tuple[PersonDigests, TokenDigests]:
    """Return the digests that use the store's keys."""
    return PersonDigests(key(db, "people")), TokenDigests(key(db, "sessions"))
