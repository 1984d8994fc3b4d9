"""Absences of the relay: the gaps between heartbeats, which each engine stores in its own way."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from relay.core.delivery_rules import Interval
from relay.store.repository import Repository, rows
from relay.store.sql import Database, FilteredSql, Sql

Cause = Literal["stopped", "crashed", "stalled"]
"""Stopped: the previous process closed its store. Crashed: it did not.

Stalled: the process ran but could not write, because the disk was full, the machine was suspended
or the process was blocked; a clock that is set forward looks the same.
"""


LOSSLESS_MAX = 1000
"""Stored absences without a loss, so that frequent restarts do not fill the store."""


class Absence(msgspec.Struct, frozen=True):
    """A gap between two heartbeats; times are milliseconds since the epoch."""

    id: int
    cause: Cause
    from_ms: int
    to_ms: int
    lacks: Interval | None
    """Events first sent within it are lost; None if the sender's retries outlasted the absence."""
    acknowledged_ms: int | None
    """Time of an operator's acknowledgement."""


COLUMNS = "id, cause, from_at, to_at, lost_until, acknowledged_at"
"""Columns of `absence_of`."""


def absence_of(row: Sequence[Any]) -> Absence:
    """Make an absence from the columns of `COLUMNS`."""
    number, cause, from_ms, to_ms, lost_until_ms, acknowledged_ms = row
    lacks = None if lost_until_ms is None else Interval(from_ms=from_ms, to_ms=lost_until_ms)
    return Absence(number, cause, from_ms, to_ms, lacks, acknowledged_ms)


_OPEN = "lost_until IS NOT NULL AND acknowledged_at IS NULL"
_NEWEST = FilteredSql(
    f"SELECT {COLUMNS} FROM main.absences WHERE {{where}} ORDER BY id DESC LIMIT :limit",
    {"before": "id < :before"},
)
_UNACKNOWLEDGED = Sql(f"SELECT {COLUMNS} FROM main.absences WHERE {_OPEN} ORDER BY id LIMIT :limit")
_LOSS = Sql(f"""
SELECT CAST(coalesce(sum(lost_until - from_at), 0) AS bigint) FROM main.absences WHERE {_OPEN}
""")
# Not the absences from before the source's first view, which cost it nothing. Reports are written
# without blanks, and a quotation mark in a text is escaped.
_UNRECONCILED = Sql(f"""
SELECT {COLUMNS} FROM main.absences AS a
WHERE lost_until IS NOT NULL
    AND NOT EXISTS (
        SELECT 1 FROM main.reconciliations AS r
        WHERE r.source = :source AND r.state = 'done' AND r.dry = 0
            AND r.since <= a.from_at AND r.until >= a.lost_until
            AND instr(coalesce(r.report, ''), '"unrequested":["') = 0
    )
    AND to_at > coalesce(
        (SELECT at FROM main.audience WHERE source = :source ORDER BY at LIMIT 1), 0
    )
ORDER BY id
""")
_ACKNOWLEDGE = Sql(f"""
UPDATE main.absences SET acknowledged_at = coalesce(acknowledged_at, :now) WHERE id = :id
RETURNING {COLUMNS}
""")


class Absences(Repository, ABC):
    """Heartbeats, and the gaps between them; all methods may raise StoreError."""

    @abstractmethod
    async def last_alive_ms(self) -> int | None:
        """Return the time of the last heartbeat.

        None in a new store, and while other relays use it, whose heartbeats they are.
        """

    @abstractmethod
    async def beat(self, *, now_ms: int, cause: Cause, over_ms: int) -> Absence | None:
        """Store a heartbeat, and return the absence that it ends, if longer than `over_ms`.

        Raises StoreFull below the floor of free space, because then no event is accepted either.
        """

    async def newest(self, *, before: int | None, limit: int) -> Sequence[Absence]:
        """Return the newest absences, those before an id if one is given."""
        values = {"before": before, "limit": limit}
        return [absence_of(each) for each in await rows(self._reader, _NEWEST.by(values), values)]

    async def unacknowledged(self, *, limit: int) -> Sequence[Absence]:
        """Return the oldest absences that lost events and are not acknowledged."""
        found = await rows(self._reader, _UNACKNOWLEDGED, {"limit": limit})
        return [absence_of(each) for each in found]

    async def unacknowledged_loss_ms(self) -> int:
        """Return the total time whose events are lost, over the unacknowledged absences."""
        ((loss_ms,),) = await rows(self._reader, _LOSS, {})
        return int(loss_ms)

    async def unreconciled(self, source: str) -> Sequence[Absence]:
        """Return the absences that lost events and that no run of a source has covered.

        The oldest come first; those that ended before the source's first event are not among them.
        """
        found = await rows(self._reader, _UNRECONCILED, {"source": source})
        return [absence_of(each) for each in found]

    async def acknowledge(self, number: int, *, now_ms: int) -> Absence | None:
        """Acknowledge an absence; None if it does not exist.

        An absence that is already acknowledged keeps its time.
        """

        def acknowledge(db: Database) -> list[Absence]:
            values = {"id": number, "now": now_ms}
            return [absence_of(each) for each in db.execute(_ACKNOWLEDGE, values).fetchall()]

        return next(iter(await self._background.transact(acknowledge)), None)
