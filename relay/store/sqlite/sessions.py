"""Sessions in SQLite."""

import hashlib
from collections.abc import Collection, Sequence
from typing import get_args

from relay.store.sessions import (
    AGE_MS,
    IDLE_MS,
    KNOWN_MAX,
    KNOWN_MS,
    SEEN_EVERY_MS,
    SESSIONS_MAX,
    KnownClient,
    Role,
    Session,
)
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

_LIVE = f"""
seen_at BETWEEN :now - {IDLE_MS} AND :now + {SEEN_EVERY_MS}
AND opened_at BETWEEN :now - {AGE_MS} AND :now + {SEEN_EVERY_MS}
"""
_DROP_EXPIRED = f"DELETE FROM sessions WHERE NOT ({_LIVE})"
_DROP_SURPLUS = f"""
DELETE FROM sessions WHERE digest IN (
    SELECT digest FROM sessions WHERE role = :role ORDER BY seen_at DESC, opened_at DESC
    LIMIT -1 OFFSET {SESSIONS_MAX - 1}
)
"""
_OPEN = "INSERT INTO sessions VALUES (:digest, :role, :token, :now, :now, :address)"
_FIND = f"""
SELECT token, role, address FROM sessions WHERE digest = :digest AND {_LIVE}
"""
_TO_NOTE = f"digest = :digest AND seen_at <= :now - {SEEN_EVERY_MS} AND {_LIVE}"
_IS_TO_NOTE = f"SELECT 1 FROM sessions WHERE {_TO_NOTE}"
_SEEN = f"UPDATE sessions SET seen_at = :now WHERE {_TO_NOTE}"
_CLOSE = "DELETE FROM sessions WHERE digest = ?"
_REMEMBER = """
INSERT INTO known_clients VALUES (?, ?, ?) ON CONFLICT (mark) DO UPDATE SET
    role = min(role, excluded.role), right_at = max(right_at, excluded.right_at)
"""
_FORGET_EXPIRED = f"DELETE FROM known_clients WHERE right_at <= ? - {KNOWN_MS}"
_FORGET_SURPLUS = f"""
DELETE FROM known_clients WHERE mark IN (
    SELECT mark FROM known_clients WHERE role = ? ORDER BY right_at DESC
    LIMIT -1 OFFSET {KNOWN_MAX}
)
"""
_REMEMBERED = f"SELECT mark, role, right_at FROM known_clients WHERE right_at > ? - {KNOWN_MS}"


class SqliteSessions(Part):
    """Fulfils `relay.store.sessions.Sessions`."""

    def fingerprint(self, token: str) -> bytes:
        return self._shared.tokens.digest(token)

    async def open(
        self,
        identifier: bytes,
        *,
        role: Role,
        fingerprint: bytes,
        address: str | None,
        now_ms: int,
    ) -> None:
        values = {
            "digest": _digest(identifier),
            "role": role,
            "token": fingerprint,
            "address": address,
            "now": now_ms,
        }

        def begin(db: sqlite3.Connection) -> None:
            db.execute(_DROP_EXPIRED, {"now": now_ms})
            db.execute(_DROP_SURPLUS, {"role": role})
            db.execute(_OPEN, values)

        await self._writer.transact(begin)

    async def find(
        self, identifier: bytes, *, fingerprints: Collection[bytes], now_ms: int
    ) -> Session | None:
        values = {"digest": _digest(identifier), "now": now_ms}
        row = await self._reader.read(lambda db: db.execute(_FIND, values).fetchone())
        if row is None:
            return None
        token, *session = row
        return Session(*session) if token in fingerprints else None

    async def seen(self, identifier: bytes, *, now_ms: int) -> None:
        values = {"digest": _digest(identifier), "now": now_ms}
        # Read first, because acknowledgements wait for the writer.
        if await self._reader.read(lambda db: db.execute(_IS_TO_NOTE, values).fetchone()):
            await self._writer.transact(lambda db: db.execute(_SEEN, values).rowcount)

    async def close(self, identifier: bytes) -> None:
        await self._writer.execute(_CLOSE, _digest(identifier))

    async def remember(self, clients: Collection[KnownClient], *, now_ms: int) -> None:
        rows = [(each.mark, each.role, each.right_ms) for each in clients]

        def note(db: sqlite3.Connection) -> None:
            db.executemany(_REMEMBER, rows)
            db.execute(_FORGET_EXPIRED, (now_ms,))
            for role in get_args(Role):
                db.execute(_FORGET_SURPLUS, (role,))

        await self._writer.transact(note)

    async def remembered(self, *, now_ms: int) -> Sequence[KnownClient]:
        rows = await self._reader.read(lambda db: db.execute(_REMEMBERED, (now_ms,)).fetchall())
        return [KnownClient(*row) for row in rows]


def _digest(identifier: bytes) -> bytes:
    return hashlib.sha256(identifier).digest()
