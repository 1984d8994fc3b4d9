"""Records of erasures in SQL, without the address."""

import msgspec
from msgspec.structs import replace

from relay.store.personal_data import Erasure, ErasureRecord
from relay.store.postgres.driver import Database
from relay.store.stepwise_personal_data import Remains

_BEGIN = """
INSERT INTO relay.erasures (id, begun_at, person) OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s)
ON CONFLICT (id) DO NOTHING
"""
_END = "UPDATE relay.erasures SET ended_at = %s, report = %s WHERE id = %s"
_NEWEST = """
SELECT id, begun_at, ended_at, person, report,
    id <= coalesce((SELECT value FROM relay.state WHERE name = 'vacuumed'), 0)
FROM relay.erasures WHERE %(person)s::bytea IS NULL OR person = %(person)s
ORDER BY id DESC LIMIT %(limit)s
"""


def begin(db: Database, number: int, person: bytes, *, now_ms: int) -> int:
    """Record the start of an erasure under a number, by the person's digest."""
    db.execute(_BEGIN, (number, now_ms, person))
    return number


def end(db: Database, number: int, erasure: Erasure, *, now_ms: int) -> None:
    """Record the end and the result of an erasure."""
    db.execute(_END, (now_ms, msgspec.json.encode(erasure).decode(), number))


def newest(db: Database, *, limit: int, person: bytes | None = None) -> list[ErasureRecord]:
    """Return the newest erasures, of one person's digest or of all."""
    rows = db.execute(_NEWEST, {"person": person, "limit": limit})
    return [
        ErasureRecord(id_, begun_ms, ended_ms, person.hex(), report and _read(report, vacuumed))
        for id_, begun_ms, ended_ms, person, report, vacuumed in rows
    ]


def _read(report: str, vacuumed: bool) -> Erasure:  # noqa: FBT001  as it is stored
    return replace(
        msgspec.json.decode(report, type=Erasure), remains=remains(vacuumed=vacuumed).text
    )


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
