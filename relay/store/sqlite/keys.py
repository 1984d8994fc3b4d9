"""The store's own random keys."""

import secrets

from relay.store.keyed_digests import KEY_BYTES, PEOPLE, SESSIONS, PersonDigests, TokenDigests
from relay.store.sqlite.driver import sqlite3

_KEY = "SELECT value FROM keys WHERE name = ?"
_MAKE_KEY = "INSERT INTO keys VALUES (?, ?) ON CONFLICT DO NOTHING"


def key(db: sqlite3.Connection, name: str) -> bytes:
    """Return the key with a name, created on first use."""
    db.execute(_MAKE_KEY, (name, secrets.token_bytes(KEY_BYTES)))
    value: bytes = db.execute(_KEY, (name,)).fetchone()[0]
    return value


def digests(db: sqlite3.Connection) -> tuple[PersonDigests, TokenDigests]:
    """Return the digests that use the store's keys."""
    return PersonDigests(key(db, PEOPLE)), TokenDigests(key(db, SESSIONS))
