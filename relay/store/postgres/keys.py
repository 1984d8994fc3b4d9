"""The store's own random keys."""

import secrets

from relay.store.keyed_digests import KEY_BYTES, PEOPLE, SESSIONS, PersonDigests, TokenDigests
from relay.store.postgres.driver import Database

# It writes in any case, so that a key is used only once a standby has it too.
_KEY = """
INSERT INTO relay.keys (name, value) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET value = keys.value RETURNING value
"""


def key(db: Database, name: str) -> bytes:
    """Return the key with a name, created on first use by the first relay."""
    (row,) = db.execute(_KEY, (name, secrets.token_bytes(KEY_BYTES))).fetchall()
    value: bytes = row[0]
    return value


def digests(db: Database) -> tuple[PersonDigests, TokenDigests]:
    """Return the digests that use the store's keys."""
    return PersonDigests(key(db, PEOPLE)), TokenDigests(key(db, SESSIONS))
