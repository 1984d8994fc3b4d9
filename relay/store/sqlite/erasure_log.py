"""Records of erasures in SQL; the address is in a report only until its erasure has ended."""

from relay.store.personal_data import ErasureRecord
from relay.store.personal_data_traces import Traces
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.stepwise_erasure import Change, Remains, Stored, record_of

_RUNNING = "ended_at IS NULL AND report IS NOT NULL"
_RUNNING_OF = f"SELECT id FROM erasures WHERE person = ? AND {_RUNNING}"
_BEGIN = "INSERT INTO erasures (begun_at, person, report) VALUES (?, ?, ?)"
_UNFINISHED = f"SELECT id, begun_at, report FROM erasures WHERE {_RUNNING} ORDER BY id LIMIT 1"
_NOTE = "UPDATE erasures SET report = ? WHERE id = ?"
_END = "UPDATE erasures SET report = ?, ended_at = ? WHERE id = ?"
_RECORDS = """
SELECT id, begun_at, report, ended_at, person,
    id <= coalesce((SELECT value FROM state WHERE name = 'wiped'), 0)
FROM erasures
"""
_ONE = f"{_RECORDS} WHERE id = ?"
_NEWEST = f"{_RECORDS} WHERE person = coalesce(?, person) ORDER BY id DESC LIMIT ?"


def begin(db: sqlite3.Connection, person: bytes, report: str, *, now_ms: int) -> int:
    """Record the start of an erasure, by the person's digest, unless one runs.

    Return its number.
    """
    running = db.execute(_RUNNING_OF, (person,)).fetchone()
    if running is not None:
        return int(running[0])
    return db.execute(_BEGIN, (now_ms, person, report)).lastrowid or 0


def unfinished(db: sqlite3.Connection) -> Stored | None:
    """Return the oldest erasure that can go on."""
    row = db.execute(_UNFINISHED).fetchone()
    return None if row is None else Stored(*row)


def note(db: sqlite3.Connection, change: Change, removed: Traces) -> None:
    """Store how far an erasure is, with what the transaction removes."""
    db.execute(_NOTE, (change.after(removed), change.number))


def end(db: sqlite3.Connection, change: Change, *, now_ms: int) -> None:
    """Record the end and the result of an erasure."""
    db.execute(_END, (change.after(Traces()), now_ms, change.number))


def one(db: sqlite3.Connection, number: int) -> ErasureRecord | None:
    """Return one erasure."""
    row = db.execute(_ONE, (number,)).fetchone()
    return None if row is None else _record(row)


def newest(
    db: sqlite3.Connection, *, limit: int, person: bytes | None = None
) -> list[ErasureRecord]:
    """Return the newest erasures, of one person's digest or of all."""
    return [_record(row) for row in db.execute(_NEWEST, (person, limit))]


def _record(row: Row) -> ErasureRecord:
    *stored, ended_ms, person, wiped = row
    return record_of(Stored(*stored), ended_ms, person, remains(wiped=bool(wiped)))


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
