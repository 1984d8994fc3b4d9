"""Sessions in PostgreSQL, which hold on every relay."""

import hashlib
from collections.abc import Collection, Sequence
from typing import get_args

from relay.store.postgres.driver import Database, Row
from relay.store.postgres.shared import Part
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

_LIVE = f"""
seen_at BETWEEN %(now)s - {IDLE_MS} AND %(now)s + {SEEN_EVERY_MS}
AND opened_at BETWEEN %(now)s - {AGE_MS} AND %(now)s + {SEEN_EVERY_MS}
"""
# Logins on two relays that remove the same sessions must not wait for each other in turn.
_DROP_EXPIRED = f"""
DELETE FROM relay.sessions WHERE digest IN (
    SELECT digest FROM relay.sessions WHERE NOT ({_LIVE}) FOR UPDATE SKIP LOCKED
)
"""
_DROP_SURPLUS = f"""
DELETE FROM relay.sessions WHERE digest IN (
    SELECT digest FROM relay.sessions WHERE digest = ANY(ARRAY(
        SELECT digest FROM relay.sessions WHERE role = %(role)s
        ORDER BY seen_at DESC, opened_at DESC OFFSET {SESSIONS_MAX - 1}
    )) FOR UPDATE SKIP LOCKED
)
"""
_OPEN = """
INSERT INTO relay.sessions (digest, role, token, opened_at, seen_at, address)
VALUES (%(digest)s, %(role)s, %(token)s, %(now)s, %(now)s, %(address)s)
ON CONFLICT (digest) DO NOTHING
"""
_FIND = f"""
SELECT token, role, address FROM relay.sessions WHERE digest = %(digest)s AND {_LIVE}
"""
_TO_NOTE = f"digest = %(digest)s AND seen_at <= %(now)s - {SEEN_EVERY_MS} AND {_LIVE}"
_IS_TO_NOTE = f"SELECT 1 FROM relay.sessions WHERE {_TO_NOTE}"
_SEEN = f"UPDATE relay.sessions SET seen_at = %(now)s WHERE {_TO_NOTE}"
_CLOSE = "DELETE FROM relay.sessions WHERE digest = %s"
_REMEMBER = """
INSERT INTO relay.known_clients AS known (mark, role, right_at) VALUES (%s, %s, %s)
ON CONFLICT (mark) DO UPDATE SET
    role = least(known.role, excluded.role), right_at = greatest(known.right_at, excluded.right_at)
"""
_FORGET_EXPIRED = f"""
DELETE FROM relay.known_clients WHERE mark IN (
    SELECT mark FROM relay.known_clients WHERE right_at <= %s - {KNOWN_MS} FOR UPDATE SKIP LOCKED
)
"""
_FORGET_SURPLUS = f"""
DELETE FROM relay.known_clients WHERE mark IN (
    SELECT mark FROM relay.known_clients WHERE mark = ANY(ARRAY(
        SELECT mark FROM relay.known_clients WHERE role = %s
        ORDER BY right_at DESC OFFSET {KNOWN_MAX}
    )) FOR UPDATE SKIP LOCKED
)
"""
_REMEMBERED = f"""
SELECT mark, role, right_at FROM relay.known_clients WHERE right_at > %s - {KNOWN_MS}
"""


class PostgresSessions(Part):
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

        def begin(db: Database) -> None:
            db.execute(_DROP_EXPIRED, values)
            db.execute(_DROP_SURPLUS, values)
            db.execute(_OPEN, values)

        await self._shared.background.transact(begin)

    async def find(
        self, identifier: bytes, *, fingerprints: Collection[bytes], now_ms: int
    ) -> Session | None:
        row = await self._row(_FIND, identifier, now_ms)
        if row is None:
            return None
        token, *session = row
        return Session(*session) if token in fingerprints else None

    async def seen(self, identifier: bytes, *, now_ms: int) -> None:
        # Read first, because acknowledgements wait for the writer.
        if await self._row(_IS_TO_NOTE, identifier, now_ms):
            values = {"digest": _digest(identifier), "now": now_ms}
            await self._shared.background.transact(lambda db: db.execute(_SEEN, values).rowcount)

    async def close(self, identifier: bytes) -> None:
        await self._shared.background.execute(_CLOSE, _digest(identifier))

    async def remember(self, clients: Collection[KnownClient], *, now_ms: int) -> None:
        # In order, because relays that note the same clients must not wait for each other in turn.
        rows = sorted((each.mark, each.role, each.right_ms) for each in clients)

        def note(db: Database) -> None:
            for row in rows:
                db.execute(_REMEMBER, row)
            db.execute(_FORGET_EXPIRED, (now_ms,))
            for role in get_args(Role):
                db.execute(_FORGET_SURPLUS, (role,))

        await self._shared.background.transact(note)

    async def remembered(self, *, now_ms: int) -> Sequence[KnownClient]:
        rows = await self._reader.read(lambda db: db.execute(_REMEMBERED, (now_ms,)).fetchall())
        return [KnownClient(bytes(mark), role, right_ms) for mark, role, right_ms in rows]

    async def _row(self, sql: str, identifier: bytes, now_ms: int) -> Row | None:
        values = {"digest": _digest(identifier), "now": now_ms}
        return await self._reader.read(lambda db: db.execute(sql, values).fetchone())


def _digest(identifier: bytes) -> bytes:
    return hashlib.sha256(identifier).digest()
