"""Rows of a person's data in SQLite, for an export."""

from collections.abc import Callable, Mapping, Sequence

from relay.store.email_matcher import EmailMatcher
from relay.store.events import AttemptRecord, history
from relay.store.personal_data import KeptRequest, Mention, View
from relay.store.personal_data_parts import UNVERIFIED, Record
from relay.store.rows import is_damaged
from relay.store.sqlite.driver import sqlite3

_UNREADABLE = """
SELECT source, received_at, reason, coalesce(headers, x''), body, digest
FROM unreadable WHERE rowid = ?
"""
_QUARANTINED = f"""
SELECT source, received_at, '{UNVERIFIED}', headers, body, NULL
FROM quarantine WHERE number = ?
"""
_MENTION = """
SELECT e.source, e.id, e.body, a.sink, a.started_at, a.duration_ms, a.result, a.status, a.reason,
    a.answer, a.replay
FROM attempts a JOIN events e ON e.seq = a.event WHERE a.rowid = ?
"""
_VIEW = """
SELECT a.source, v.id, v.title, a.step, a.at
FROM audience a LEFT JOIN videos v ON v.number = a.video WHERE a.event = ?
"""


def _request(db: sqlite3.Connection, sql: str, key: int) -> KeptRequest | None:
    row = db.execute(sql, (key,)).fetchone()
    if row is None:
        return None
    source, received_ms, reason, headers, body, received = row
    damaged = received is not None and is_damaged(body, received)
    return KeptRequest(source, received_ms, reason, headers, body or b"", damaged)


def _mention(db: sqlite3.Connection, key: int, address: EmailMatcher) -> Mention | None:
    """None for an answer to the person's own event, which already includes it."""
    row = db.execute(_MENTION, (key,)).fetchone()
    if row is None or address.stands_in(row[2]):
        return None
    source, event_id, _, *attempt = row
    return Mention(source, event_id, AttemptRecord(*attempt))


def _view(db: sqlite3.Connection, key: int, _: EmailMatcher) -> View | None:
    row = db.execute(_VIEW, (key,)).fetchone()
    return None if row is None else View(*row)


_Read = Callable[[sqlite3.Connection, int, EmailMatcher], Record | None]

_READERS: Mapping[str, _Read] = {
    "events": lambda db, key, _: history(db, key),
    "unreadable": lambda db, key, _: _request(db, _UNREADABLE, key),
    "quarantine": lambda db, key, _: _request(db, _QUARANTINED, key),
    "excerpts": _mention,
    "views": _view,
}
"""By the names of the places."""


def records(
    db: sqlite3.Connection, place: str, address: EmailMatcher, keys: Sequence[int]
) -> list[Record]:
    """Read rows of a place."""
    read = _READERS[place]
    rows = (read(db, key, address) for key in keys)
    return [record for record in rows if record is not None]
