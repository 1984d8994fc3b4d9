"""Sessions of the page, and clients that had the right token lately, over restarts."""

import hashlib
from collections.abc import Collection, Sequence
from typing import Literal, get_args

import msgspec

from relay.core.minutes import DAY_MS, HOUR_MS, MINUTE_MS
from relay.store.repository import Repository, row, rows
from relay.store.sql import Database, Sql

Role = Literal["admin", "viewer"]

SESSIONS_MAX = 200
"""Of each role: viewers' logins must not end the administrators' sessions."""

IDLE_MS = 2 * HOUR_MS
SEEN_EVERY_MS = MINUTE_MS
"""Time within which a session's requests are noted once."""

AGE_MS = 12 * HOUR_MS
"""Longest life of a session, however much it is used."""

KNOWN_MS = 30 * DAY_MS
KNOWN_MAX = 100
"""Marks of known clients of each role: viewers' must not displace the administrators'."""


class LoginSession(msgspec.Struct, frozen=True):
    """One login."""

    role: Role
    address: str | None
    """Network address of the client at the login."""


class KnownClient(msgspec.Struct, frozen=True):
    """A client that had the right token."""

    mark: bytes
    """A fingerprint of its address, or of its browser's identifier."""
    role: Role
    right_ms: int
    """Time of the token."""


_LIVE = f"""
seen_at BETWEEN :now - {IDLE_MS} AND :now + {SEEN_EVERY_MS}
AND opened_at BETWEEN :now - {AGE_MS} AND :now + {SEEN_EVERY_MS}
"""
# Two relays that remove the same rows must not wait for each other in turn.
_UNLOCKED = "/*postgres FOR UPDATE SKIP LOCKED */"
_ALL = 1 << 40
_DROP_EXPIRED = Sql(f"""
DELETE FROM main.sessions WHERE digest IN (
    SELECT digest FROM main.sessions WHERE NOT ({_LIVE}) {_UNLOCKED}
)
""")
_DROP_SURPLUS = Sql(f"""
DELETE FROM main.sessions WHERE digest IN (
    SELECT digest FROM main.sessions WHERE digest IN (
        SELECT digest FROM main.sessions WHERE role = :role
        ORDER BY seen_at DESC, opened_at DESC LIMIT {_ALL} OFFSET {SESSIONS_MAX - 1}
    ) {_UNLOCKED}
)
""")
_OPEN = Sql("""
INSERT INTO main.sessions (digest, role, token, opened_at, seen_at, address)
VALUES (:digest, :role, :token, :now, :now, :address) ON CONFLICT (digest) DO NOTHING
""")
_FIND = Sql(f"SELECT token, role, address FROM main.sessions WHERE digest = :digest AND {_LIVE}")
_TO_NOTE = f"digest = :digest AND seen_at <= :now - {SEEN_EVERY_MS} AND {_LIVE}"
_IS_TO_NOTE = Sql(f"SELECT 1 FROM main.sessions WHERE {_TO_NOTE}")
_SEEN = Sql(f"UPDATE main.sessions SET seen_at = :now WHERE {_TO_NOTE}")
_CLOSE = Sql("DELETE FROM main.sessions WHERE digest = :digest")
_REMEMBER = Sql("""
INSERT INTO main.known_clients AS known (mark, role, right_at) VALUES (:mark, :role, :right)
ON CONFLICT (mark) DO UPDATE SET
    role = least(known.role, excluded.role), right_at = greatest(known.right_at, excluded.right_at)
""")
_FORGET_EXPIRED = Sql(f"""
DELETE FROM main.known_clients WHERE mark IN (
    SELECT mark FROM main.known_clients WHERE right_at <= :now - {KNOWN_MS} {_UNLOCKED}
)
""")
_FORGET_SURPLUS = Sql(f"""
DELETE FROM main.known_clients WHERE mark IN (
    SELECT mark FROM main.known_clients WHERE mark IN (
        SELECT mark FROM main.known_clients WHERE role = :role
        ORDER BY right_at DESC LIMIT {_ALL} OFFSET {KNOWN_MAX}
    ) {_UNLOCKED}
)
""")
_REMEMBERED = Sql(f"""
SELECT mark, role, right_at FROM main.known_clients WHERE right_at > :now - {KNOWN_MS}
ORDER BY mark
""")


class Sessions(Repository):
    """All sessions and known clients of a store; all methods but `fingerprint` raise StoreError.

    An identifier is 32 random bytes, of which only a digest is stored.
    """

    def fingerprint(self, token: str) -> bytes:
        """Return a keyed digest of a token, the same for as long as the store exists.

        It does not depend on the role, so a token that gets another role keeps its sessions.
        """
        return self._connections.tokens.digest(token)

    async def open(
        self,
        identifier: bytes,
        *,
        role: Role,
        fingerprint: bytes,
        address: str | None,
        now_ms: int,
    ) -> None:
        """Store a new session, opened with the token of a fingerprint.

        Expired sessions are removed first, and of more than `SESSIONS_MAX` with the same role
        those seen longest ago.
        It also works below the floor of free space, because that is when an operator logs in.
        """
        values = {
            "digest": _digest(identifier),
            "role": role,
            "token": fingerprint,
            "address": address,
            "now": now_ms,
        }

        def open_session(db: Database) -> None:
            for statement in (_DROP_EXPIRED, _DROP_SURPLUS, _OPEN):
                db.execute(statement, values)

        await self._background.transact(open_session)

    async def find(
        self, identifier: bytes, *, fingerprints: Collection[bytes], now_ms: int
    ) -> LoginSession | None:
        """Return a session that is still valid; `fingerprints` are those of the current tokens.

        It ends `IDLE_MS` after its last request, `AGE_MS` after its login, and once the clock was
        set back to over a minute before either, since its age is unknown then.
        """
        found = await row(self._reader, _FIND, {"digest": _digest(identifier), "now": now_ms})
        if found is None:
            return None
        token, *session = found
        return LoginSession(*session) if token in fingerprints else None

    async def seen(self, identifier: bytes, *, now_ms: int) -> None:
        """Note a request, once a minute at most; an ended session stays ended.

        Nothing depends on a single note, so a caller may ignore StoreFull.
        """
        values = {"digest": _digest(identifier), "now": now_ms}
        # Read first, because acknowledgements wait for the writer.
        if await row(self._reader, _IS_TO_NOTE, values):
            await self._background.execute(_SEEN, values)

    async def close(self, identifier: bytes) -> None:
        """End a session; one that is unknown is no error."""
        await self._background.execute(_CLOSE, {"digest": _digest(identifier)})

    async def remember(self, clients: Collection[KnownClient], *, now_ms: int) -> None:
        """Store known clients; of each role, the last `KNOWN_MAX` of the last `KNOWN_MS` stay."""
        # In order, because relays that note the same clients must not wait for each other in turn.
        known = sorted(clients, key=lambda client: client.mark)

        def remember(db: Database) -> None:
            for each in known:
                values = {"mark": each.mark, "role": each.role, "right": each.right_ms}
                db.execute(_REMEMBER, values)
            db.execute(_FORGET_EXPIRED, {"now": now_ms})
            for role in get_args(Role):
                db.execute(_FORGET_SURPLUS, {"role": role})

        await self._background.transact(remember)

    async def remembered(self, *, now_ms: int) -> Sequence[KnownClient]:
        """Return the known clients of all relays."""
        return [
            KnownClient(*each) for each in await rows(self._reader, _REMEMBERED, {"now": now_ms})
        ]


def _digest(identifier: bytes) -> bytes:
    return hashlib.sha256(identifier).digest()
