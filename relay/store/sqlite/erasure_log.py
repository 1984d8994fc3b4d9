"""What is remembered of erasures, in SQL: that they were, and what they removed, without a name."""

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


def begin(db: sqlite3.Connection, wanted: tuple[str, int]) -> int:
    """Write down that the person of a case-folded address is being erased, and since when."""
    folded, now_ms = wanted
    person = keys.PersonDigests.of(db).digest(folded)
    return db.execute(_BEGIN, (now_ms, person)).lastrowid or 0


def end(db: sqlite3.Connection, wanted: tuple[int, int, Erasure]) -> None:
    """Write down what was removed, and that nothing is missing."""
    number, now_ms, erasure = wanted
    db.execute(_END, (now_ms, msgspec.json.encode(erasure).decode(), number))


def newest(db: sqlite3.Connection, *, limit: int) -> list[ErasureRecord]:
    """The last that there were."""
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
