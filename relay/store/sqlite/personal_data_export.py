"""What is stored of a person, read in parts: each begins where the one before has ended."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from relay.store.email_matcher import EmailMatcher
from relay.store.operations import AttemptRecord, History
from relay.store.personal_data import KeptRequest, Mention, Records, View
from relay.store.sqlite.digests import is_damaged
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_queries import history
from relay.store.sqlite.personal_data_places import PLACES
from relay.store.sqlite.personal_data_search import find

PART_BYTES = 4 << 20
PART_STEPS = 40
"""A part is handed over when it is so large, or has taken so many looks."""

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
    """Which of the shelves, and from which key on."""

    shelf: int = 0
    start: int = 0

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """Raises ValueError for what `str` has not made."""
        if text is None:
            return cls()
        match = _CURSOR.fullmatch(text)
        if match is None or int(match[1]) >= len(_SHELVES):
            raise ValueError("after is not the `next` of an answer before")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.shelf}.{self.start}"


def look(
    db: sqlite3.Connection, address: EmailMatcher, cursor: Cursor
) -> tuple[list[Any], int, Cursor]:
    """One step: what was found, its bytes, and where to go on; past the last shelf at the end."""
    name, read = _SHELVES[cursor.shelf]
    place = next(each for each in PLACES if each.name == name)
    found = find(db, place, address, start=cursor.start)
    records = [read(db, key, address) for key, _ in found.rows]
    onward = Cursor(cursor.shelf + 1) if found.next is None else Cursor(cursor.shelf, found.next)
    size = sum(bytes_ for _, bytes_ in found.rows)
    return [each for each in records if each is not None], size, onward


def is_over(cursor: Cursor) -> bool:
    return cursor.shelf >= len(_SHELVES)


def part(found: list[Any], onward: Cursor) -> Records:
    """Sort what was found by what it is."""
    return Records(
        events=[each for each in found if isinstance(each, History)],
        unreadable=[each for each in found if isinstance(each, KeptRequest)],
        mentions=[each for each in found if isinstance(each, Mention)],
        views=[each for each in found if isinstance(each, View)],
        next=None if is_over(onward) else str(onward),
    )


def _event(db: sqlite3.Connection, key: int, _: EmailMatcher) -> History | None:
    return history(db, key)


def _unreadable(db: sqlite3.Connection, key: int, _: EmailMatcher) -> KeptRequest | None:
    return _request(db, _UNREADABLE, key)


def _quarantined(db: sqlite3.Connection, key: int, _: EmailMatcher) -> KeptRequest | None:
    return _request(db, _QUARANTINED, key)


def _request(db: sqlite3.Connection, sql: str, key: int) -> KeptRequest | None:
    row = db.execute(sql, (key,)).fetchone()
    if row is None:
        return None
    source, received_ms, reason, headers, body, taken = row
    return KeptRequest(
        source=source,
        received_ms=received_ms,
        reason=reason,
        headers=headers,
        body=body or b"",
        is_damaged=taken is not None and is_damaged(body, taken),
    )


def _mention(db: sqlite3.Connection, key: int, address: EmailMatcher) -> Mention | None:
    """None for an answer about an event of the person's own, which shows it already."""
    row = db.execute(_MENTION, (key,)).fetchone()
    if row is None or address.stands_in(row[2]):
        return None
    names = AttemptRecord.__dataclass_fields__
    attempt = AttemptRecord(**dict(zip(names, row[3:], strict=True)))
    return Mention(source=row[0], id=row[1], attempt=attempt)


def _view(db: sqlite3.Connection, key: int, _: EmailMatcher) -> View | None:
    row = db.execute(_VIEW, (key,)).fetchone()
    if row is None:
        return None
    source, video, title, step, at_ms = row
    return View(source=source, video=video, title=title, step=step, at_ms=at_ms)


_Record = History | KeptRequest | Mention | View
_Read = Callable[[sqlite3.Connection, int, EmailMatcher], _Record | None]

_SHELVES: tuple[tuple[str, _Read], ...] = (
    ("events", _event),
    ("unreadable", _unreadable),
    ("quarantine", _quarantined),
    ("excerpts", _mention),
    ("views", _view),
)
"""By the names of the places."""
