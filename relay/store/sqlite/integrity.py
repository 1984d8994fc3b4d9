"""Inspections of a SQLite store, while it is written to."""

from pathlib import Path

from relay.core.delivery import Status
from relay.core.errors import StoreBroken
from relay.store.audience import days
from relay.store.audience.writes import all_sets
from relay.store.integrity import Inspection, StoreContent, age
from relay.store.migrations import Schema
from relay.store.sqlite import digests, disk, id_integrity, queries, schema
from relay.store.sqlite.driver import reading, snapshot, sqlite3

_SCHEMA = "SELECT coalesce(max(number), 0) FROM migrations"
_COUNTS = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM unreadable)"
_DELIVERIES = "SELECT status, count(*) FROM deliveries GROUP BY status"


async def inspect(path: Path) -> Inspection:
    """Read the whole store without changing it or delaying a running relay."""
    size = disk.size_bytes(path)
    try:
        async with reading(path) as reader:
            content = await reader.run(_content)
            faults = await check(path) or await reader.run(_damaged)
    except (StoreBroken, sqlite3.Error) as error:
        return Inspection(size, None, (_readable(error),))
    return Inspection(
        size,
        content,
        (
            *disk.exposures(path),
            *age(Schema(content.schema, content.schema), schema.steps()[-1].number),
            *faults,
        ),
    )


async def check(path: Path) -> tuple[str, ...]:
    """Read the whole file and return its faults.

    Runs on a thread and a connection of its own, and ends at once when it is cancelled.
    Raises StoreBroken for a file that cannot be opened.
    """
    try:
        async with reading(path) as reader:
            try:
                return await reader.run(queries.faults)
            except sqlite3.DatabaseError as error:
                return (str(error),)
    except sqlite3.Error as error:
        raise StoreBroken(f"the store {path} cannot be opened: {error}") from None


def _content(db: sqlite3.Connection) -> StoreContent:
    number = db.execute(_SCHEMA).fetchone()[0]
    with snapshot(db):
        events, unreadable = db.execute(_COUNTS).fetchone()
        deliveries = dict.fromkeys(Status, 0)
        deliveries |= {Status(status): count for status, count in db.execute(_DELIVERIES)}
        sinks = queries.tallies(db)
    return StoreContent(number, events, unreadable, deliveries, sinks)


def _damaged(db: sqlite3.Connection) -> tuple[str, ...]:
    faults = *id_integrity.faults(db), *digests.damaged(db)
    return faults + days.damaged(all_sets(db))


def _readable(error: Exception) -> str:
    if "no such table" in str(error):
        return f"it is not a store of a relay: {error}"
    if getattr(error, "sqlite_errorname", "").startswith(_NOT_ALLOWED):
        return f"{error}: {_ADVICE}"
    return str(error)


_NOT_ALLOWED = ("SQLITE_READONLY", "SQLITE_CANTOPEN")
_ADVICE = (
    "SQLite needs to read the -wal and to read or create the -shm beside the store; "
    "run this as relay's user"
)
