"""Records of erasures in SQL; the address is in a report only until its erasure has ended."""

from relay.core.errors import StoreUnavailable
from relay.store.personal_data import ErasureRecord
from relay.store.personal_data_traces import Traces
from relay.store.postgres.driver import Database, Row
from relay.store.stepwise_erasure import Change, Remains, Stored, record_of

_RUNNING = "ended_at IS NULL AND report IS NOT NULL"
_RUNNING_OF = f"SELECT id FROM relay.erasures WHERE person = %s AND {_RUNNING} AND id <> %s"
_BEGIN = """
INSERT INTO relay.erasures (id, begun_at, person, report) OVERRIDING SYSTEM VALUE
VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO NOTHING
"""
_UNFINISHED = f"""
SELECT id, begun_at, report FROM relay.erasures WHERE {_RUNNING} ORDER BY id LIMIT 1
"""
# The new report too: a transaction whose outcome is unknown is done again.
_NOTE = """
UPDATE relay.erasures SET report = %s WHERE id = %s AND report IN (%s, %s) AND ended_at IS NULL
"""
_END = """
UPDATE relay.erasures SET report = %s, ended_at = %s WHERE id = %s AND report IN (%s, %s)
"""
_RECORDS = """
SELECT id, begun_at, report, ended_at, person,
    id <= coalesce((SELECT value FROM relay.state WHERE name = 'vacuumed'), 0)
FROM relay.erasures
"""
_ONE = f"{_RECORDS} WHERE id = %s"
_NEWEST = f"""
{_RECORDS} WHERE %(person)s::bytea IS NULL OR person = %(person)s ORDER BY id DESC LIMIT %(limit)s
"""


def begin(db: Database, number: int, person: bytes, report: str, *, now_ms: int) -> int:
    """Record the start of an erasure under a number, by the person's digest, unless one runs.

    Return the number of the one that runs.
    """
    running = db.execute(_RUNNING_OF, (person, number)).fetchone()
    if running is not None:
        return int(running[0])
    db.execute(_BEGIN, (number, now_ms, person, report))
    return number


def unfinished(db: Database) -> Stored | None:
    """Return the oldest erasure that can go on."""
    row = db.execute(_UNFINISHED).fetchone()
    return None if row is None else Stored(*row)


def note(db: Database, change: Change, removed: Traces) -> None:
    """Store how far an erasure is, with what the transaction removes."""
    report = change.after(removed)
    _require(db.execute(_NOTE, (report, change.number, change.before, report)).rowcount, change)


def end(db: Database, change: Change, *, now_ms: int) -> None:
    """Record the end and the result of an erasure."""
    report = change.after(Traces())
    values = (report, now_ms, change.number, change.before, report)
    _require(db.execute(_END, values).rowcount, change)


def _require(changed: int, change: Change) -> None:
    if not changed:
        raise StoreUnavailable(f"another relay carries erasure {change.number} on")


def one(db: Database, number: int) -> ErasureRecord | None:
    """Return one erasure."""
    row = db.execute(_ONE, (number,)).fetchone()
    return None if row is None else _record(row)


def newest(db: Database, *, limit: int, person: bytes | None = None) -> list[ErasureRecord]:
    """Return the newest erasures, of one person's digest or of all."""
    return [_record(row) for row in db.execute(_NEWEST, {"person": person, "limit": limit})]


def _record(row: Row) -> ErasureRecord:
    *stored, ended_ms, person, vacuumed = row
    return record_of(Stored(*stored), ended_ms, person, remains(vacuumed=vacuumed))


def remains(*, vacuumed: bool) -> Remains:
    """Describe the traces of removed data."""
    return Remains(wiped=False, text=f"{_VACUUMED if vacuumed else _NOT_VACUUMED} {_KEPT}")


_VACUUMED = "VACUUM has run on the tables."
_NOT_VACUUMED = (
    "VACUUM has not run yet, because it takes longer or only the owner of the tables may: until "
    "then they hold the old row versions."
)
_KEPT = (
    "PostgreSQL overwrites freed space only when it is used again, and its WAL, standbys and "
    "backups hold the data for as long as they are kept."
)
