"""Export of a person's data, in parts that continue one another."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from relay.store.email_matcher import EmailMatcher
from relay.store.operations import AttemptRecord, History
from relay.store.personal_data import KeptRequest, Mention, Records, View
from relay.store.rows import is_damaged
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_queries import history
from relay.store.sqlite.personal_data_places import PLACES
from relay.store.sqlite.personal_data_search import find

PART_BYTES = 4 << 20
PART_STEPS = 40
"""Size and number of steps after which a part ends."""

_CURSOR = re.compile(r"([0-9])\.([0-9]{1,18})")
_UNREADABLE = """
SELECT source, received_at, reason, coalesce(headers, x''), body, digest
FROM unreadable WHERE rowid = ?
"""
_QUARANTINED = """
SELECT source, received_at, 'it fits no secret of the source so far', headers, body, NULL
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


class Cursor(NamedTuple):
    """A section and the first key to read in it."""

    section: int = 0
    start: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """Parse what `str` returns; raises ValueError for anything else."""
        if text is None:
            return cls()
        match = _CURSOR.fullmatch(text)
        if match is None or int(match[1]) >= len(_SECTIONS):
            raise ValueError("after is invalid; pass the `next` of the previous part")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.section}.{self.start}"


def read_step(
    db: sqlite3.Connection, address: EmailMatcher, cursor: Cursor
) -> tuple[list[Any], int, Cursor]:
    """Read one step; return its records, their size, and the next cursor."""
    name, read = _SECTIONS[cursor.section]
    place = next(place for place in PLACES if place.name == name)
    matches = find(db, place, address, start=cursor.start)
    records = [read(db, key, address) for key, _ in matches.rows]
    following = (
        Cursor(cursor.section + 1) if matches.next is None else Cursor(cursor.section, matches.next)
    )
    size = sum(bytes_ for _, bytes_ in matches.rows)
    return [record for record in records if record is not None], size, following


def is_over(cursor: Cursor) -> bool:
    return cursor.section >= len(_SECTIONS)


def part(records: list[Any], following: Cursor) -> Records:
    """Sort records by their type."""
    return Records(
        events=[each for each in records if isinstance(each, History)],
        unreadable=[each for each in records if isinstance(each, KeptRequest)],
        mentions=[each for each in records if isinstance(each, Mention)],
        views=[each for each in records if isinstance(each, View)],
        next=None if is_over(following) else str(following),
    )


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


_Record = History | KeptRequest | Mention | View
_Read = Callable[[sqlite3.Connection, int, EmailMatcher], _Record | None]

_SECTIONS: tuple[tuple[str, _Read], ...] = (
    ("events", lambda db, key, _: history(db, key)),
    ("unreadable", lambda db, key, _: _request(db, _UNREADABLE, key)),
    ("quarantine", lambda db, key, _: _request(db, _QUARANTINED, key)),
    ("excerpts", _mention),
    ("views", _view),
)
"""Sections of the export, by the names of their places."""
