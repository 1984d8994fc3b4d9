"""Stored events in SQLite: found by the periods of their ids, and their places in queues."""

from collections.abc import Sequence
from operator import itemgetter

from relay.store.events import AHEAD_MAX, EVENT, EventRecord, Events, Queued, exact_or_longer
from relay.store.ordering import HELD_MS
from relay.store.replays import Mark
from relay.store.sqlite import id_periods
from relay.store.sqlite.conditions import WITH_PREFIX
from relay.store.sqlite.driver import snapshot, sqlite3
from relay.store.sqlite.shared import SqliteRepository
from relay.store.tiers import OF_TIER

_LAST = (1 << 63) - 1

_NEWEST = """
SELECT (SELECT coalesce(max(seq), 0) FROM events),
    (SELECT coalesce(max(rowid), 0) FROM attempts)
"""
_SOURCES = f"""
SELECT source FROM ({id_periods.SOURCES})
UNION SELECT source FROM events WHERE {id_periods.IS_OPEN} ORDER BY source
"""
# In the order of the index, which ends the query at the limit.
_WITH_PREFIX = f"""
SELECT {EVENT} FROM ids i CROSS JOIN events e ON e.seq = i.seq
WHERE i.period = :period AND i.source = :source AND i.{WITH_PREFIX} ORDER BY i.id LIMIT :limit
"""
_OPEN_WITH_PREFIX = f"""
SELECT {EVENT} FROM events e
WHERE e.{id_periods.IS_OPEN} AND (:source IS NULL OR e.source = :source) AND e.{WITH_PREFIX}
ORDER BY e.id != :id_prefix, e.source, e.id LIMIT :limit
"""
_PENDING = f"""
SELECT sink, iif(due_at >= {HELD_MS}, due_at - {HELD_MS}, due_at), turn
FROM deliveries WHERE event = ? AND status = 'pending' AND {{belongs}} ORDER BY sink
"""
# Held ones too: each is due once the one before it has ended.
_AHEAD = f"""
SELECT count(*) FROM (
    SELECT 1 FROM deliveries WHERE sink = :sink AND status = 'pending' AND {{belongs}}
        AND (due_at, event) < (:due, :event)
    UNION ALL
    SELECT 1 FROM deliveries WHERE sink = :sink AND status = 'pending' AND {{belongs}}
        AND due_at >= {HELD_MS} AND (due_at, event) < ({HELD_MS} + :due, :event)
    LIMIT {AHEAD_MAX + 1}
)
"""
_OF_TURN = f"""
SELECT count(*) FROM (
    SELECT 1 FROM deliveries WHERE sink = :sink AND turn = :turn AND event < :event
    LIMIT {AHEAD_MAX + 1}
)
"""


class SqliteEvents(SqliteRepository, Events):
    """Events of which all that are committed can be seen."""

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._reader.read(lambda db: _named(db, beginning, source, limit))

    async def queued(self, seq: int) -> Sequence[Queued]:
        return await self._reader.read(lambda db: _queued(db, seq))

    async def newest(self) -> Mark:
        return await self._reader.read(lambda db: Mark(*db.execute(_NEWEST).fetchone()))

    async def _visible_event(self, _: int) -> int:
        return _LAST

    async def _visible_attempt(self, _: int) -> int:
        return _LAST

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(
            lambda db: [name for (name,) in db.execute(_SOURCES).fetchall()]
        )


def _named(
    db: sqlite3.Connection, beginning: str, source: str | None, limit: int
) -> list[EventRecord]:
    values = {"id_prefix": beginning, "limit": limit}
    with snapshot(db):
        found = db.execute(_OPEN_WITH_PREFIX, {**values, "source": source}).fetchall()
        for period, name in id_periods.sources(db):
            if source in (None, name):
                found += db.execute(_WITH_PREFIX, {**values, "period": period, "source": name})
        found.sort(key=itemgetter(1, 2))
        return exact_or_longer(db, found, beginning, limit)


def _queued(db: sqlite3.Connection, event: int) -> list[Queued]:
    return [
        Queued.of(
            sink,
            db.execute(_AHEAD.format(belongs=belongs), values).fetchone()[0],
            db.execute(_OF_TURN, values).fetchone()[0],
        )
        for belongs in OF_TIER.values()
        for sink, due_ms, turn in db.execute(_PENDING.format(belongs=belongs), (event,)).fetchall()
        for values in ({"sink": sink, "event": event, "due": due_ms, "turn": turn},)
    ]
