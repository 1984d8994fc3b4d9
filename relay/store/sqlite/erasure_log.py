"""Records of erasures in SQL, without the address."""

from dataclasses import replace

import msgspec

from relay.store.personal_data import Erasure, ErasureRecord
from relay.store.sqlite import keys
from relay.store.sqlite.driver import sqlite3

_BEGIN = "INSERT INTO erasures (begun_at, person) VALUES (?, ?)"
_END = "UPDATE erasures SET ended_at = ?, report = ? WHERE id = ?"
_NEWEST = """
SELECT id, begun_at, ended_at, person, report,
    id <= coalesce((SELECT value FROM state WHERE name = 'wiped'), 0)
FROM erasures ORDER BY id DESC LIMIT ?
"""


def begin(db: sqlite3.Connection, values: tuple[str, int]) -> int:
    """Record the start of an erasure, by case-folded address and time."""
    folded, now_ms = values
    person = keys.PersonDigests.of(db).digest(folded)
    return db.execute(_BEGIN, (now_ms, person)).lastrowid or 0


def end(db: sqlite3.Connection, values: tuple[int, int, Erasure]) -> None:
    """Record the end and the result of an erasure."""
    number, now_ms, erasure = values
    db.execute(_END, (now_ms, msgspec.json.encode(erasure).decode(), number))


def newest(db: sqlite3.Connection, *, limit: int) -> list[ErasureRecord]:
    """Return the newest erasures."""
    return [
        ErasureRecord(
            id=number,
            begun_ms=begun_ms,
            ended_ms=ended_ms,
            person=person.hex(),
            erasure=None if report is None else _read(report, wiped=bool(wiped)),
        )
        for number, begun_ms, ended_ms, person, report, wiped in db.execute(_NEWEST, (limit,))
    ]


def _read(report: str, *, wiped: bool) -> Erasure:
    return replace(msgspec.json.decode(report, type=Erasure), wiped=wiped)
