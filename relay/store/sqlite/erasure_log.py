"""Records of erasures in SQL, without the address."""

import msgspec
from msgspec.structs import replace

from relay.store.personal_data import Erasure, ErasureRecord
from relay.store.sqlite.driver import sqlite3
from relay.store.stepwise_personal_data import Remains

_BEGIN = "INSERT INTO erasures (begun_at, person) VALUES (?, ?)"
_END = "UPDATE erasures SET ended_at = ?, report = ? WHERE id = ?"
_NEWEST = """
SELECT id, begun_at, ended_at, person, report,
    id <= coalesce((SELECT value FROM state WHERE name = 'wiped'), 0)
FROM erasures WHERE person = coalesce(?, person) ORDER BY id DESC LIMIT ?
"""


def begin(db: sqlite3.Connection, person: bytes, *, now_ms: int) -> int:
    """Record the start of an erasure, by the person's digest; return its number."""
    return db.execute(_BEGIN, (now_ms, person)).lastrowid or 0


def end(db: sqlite3.Connection, number: int, erasure: Erasure, *, now_ms: int) -> None:
    """Record the end and the result of an erasure."""
    db.execute(_END, (now_ms, msgspec.json.encode(erasure).decode(), number))


def newest(
    db: sqlite3.Connection, *, limit: int, person: bytes | None = None
) -> list[ErasureRecord]:
    """Return the newest erasures, of one person's digest or of all."""
    return [
        ErasureRecord(id_, begun_ms, ended_ms, person.hex(), report and _read(report, wiped))
        for id_, begun_ms, ended_ms, person, report, wiped in db.execute(_NEWEST, (person, limit))
    ]


def _read(report: str, wiped: int) -> Erasure:
    left = remains(wiped=bool(wiped))
    return replace(msgspec.json.decode(report, type=Erasure), wiped=left.wiped, remains=left.text)


def remains(*, wiped: bool) -> Remains:
    """Describe what is left of removed data."""
    return Remains(wiped, _WIPED if wiped else _NOT_WIPED)


_WIPED = "The store's files are overwritten and its log is empty; backups still hold the data."
_NOT_WIPED = (
    "The store's files are still being overwritten, or a reader holds its log; the relay "
    "finishes this in the background. Backups still hold the data."
)


def is_erased(db: sqlite3.Connection, person: bytes) -> bool:
    """Whether an erasure of a person's digest was begun at any time."""
    return db.execute("SELECT 1 FROM erasures WHERE person = ?", (person,)).fetchone() is not None
