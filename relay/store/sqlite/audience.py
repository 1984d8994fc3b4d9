"""The audience in SQLite: rows derived from events' bodies, in steps after they are accepted."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import orjson

from relay.core.errors import StoreFull
from relay.core.event import engagement
from relay.core.reconstruction import change_of, occurred_ms
from relay.store.audience import AudienceQuery, Funnel
from relay.store.keyed_digests import PersonDigests
from relay.store.related import Related
from relay.store.rows import SUPERSEDED, document_of, within_bytes
from relay.store.sqlite import audience_rollup, audience_weeks, bulk, funnel, queries
from relay.store.sqlite import related as related_events
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.shared import Part

STEP_ROWS = 200
STEP_BYTES = 1 << 20
UNCOUNTED_ROWS = 20
"""Limits per transaction, because acknowledgements wait for its end."""

CATCH_UP_STEPS = 50
"""Maximum number of steps that a query waits for."""

ID_CHARS = 200
_TITLE_CHARS = 300

# A superseded reconstruction is counted by its original alone.
_NEXT = f"""
SELECT seq, source, kind, received_at,
    iif((kind = 'lead.captured' OR kind GLOB 'video.*') AND reconstructed < {SUPERSEDED},
        body, NULL),
    reconstructed
FROM events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT {STEP_ROWS}
"""
_SUPERSEDED = f"""
SELECT json_group_array(event) FROM (
    SELECT a.event FROM events e CROSS JOIN audience a ON a.event = e.seq
    WHERE e.reconstructed = {SUPERSEDED} LIMIT {UNCOUNTED_ROWS}
)
"""
_NAME = """
INSERT INTO videos (id, title) VALUES {rows}
ON CONFLICT (id) DO UPDATE SET title = excluded.title
WHERE excluded.title IS NOT NULL AND excluded.title IS NOT title
"""
_NUMBERS = "SELECT id, number FROM videos WHERE id IN (SELECT value FROM json_each(?))"
_SOURCES = "SELECT DISTINCT source FROM totals ORDER BY source"
_CHANGED = """
INSERT INTO library (source, video, change, event, at) VALUES {rows}
ON CONFLICT DO UPDATE SET event = excluded.event, at = max(at, excluded.at)
"""
_ADD = """
INSERT INTO audience (event, source, video, step, person, at) VALUES {rows}
ON CONFLICT DO NOTHING
"""


class SqliteAudience(Part):
    """Fulfils `relay.store.audience.Audience`."""

    async def fill(self) -> bool:
        self._room.require()
        # While events come in faster than they are counted, the days can wait.
        return await self.count() or await self._uncount() or await self._roll_up()

    async def count(self) -> bool:
        """Do as `fill`, but also below the floor of free space, because retention depends on it."""
        if await self._reader.read(funnel.oldest_uncounted) is None:
            return False
        return await self._writer.transact(lambda db: fill(db, self._shared.digests))

    async def _uncount(self) -> bool:
        """Remove views that were reconstructed, and whose original is counted; True if it did.

        Like the rollup not during an erasure, nor during the rollup itself.
        """
        if self._shared.rollup.locked():
            return False
        async with self._shared.rollup:
            events = await self._reader.read(lambda db: db.execute(_SUPERSEDED).fetchone()[0])
            if events != "[]":
                await self._writer.transact(partial(uncount, events=orjson.loads(events)))
        return bool(events != "[]")

    async def _roll_up(self) -> bool:
        """Add the next rows to their days; True if more may be left.

        Not during an erasure: a person's rows are removed with the numbers in the days.
        """
        if self._shared.rollup.locked():
            return False
        async with self._shared.rollup:
            batch = await self._reader.read(audience_rollup.next_batch)
            if batch is None:
                return await self._store_week()
            for people in batch.numberings():
                await self._writer.transact(partial(audience_rollup.number, people=people))
            days = await self._reader.read(batch.days)
            add = partial(audience_rollup.add, batch=batch, days=days)
            await self._writer.transact(add)
        return True

    async def _store_week(self) -> bool:
        week = await self._reader.read(audience_weeks.missing)
        if week is None:
            return False
        await self._writer.transact(partial(audience_rollup.store_week, week=week))
        return True

    def person(self, address: str) -> str:
        return f"{self._shared.digests.number(address):016x}"

    async def sources(self) -> Sequence[str]:
        rows = await self._reader.read(lambda db: db.execute(_SOURCES).fetchall())
        return [source for (source,) in rows]

    async def related(self, seq: int, *, limit: int) -> Related | None:
        digests = self._shared.digests
        return await self._shared.pager.read(
            lambda db: related_events.related(db, seq, digests, limit=limit)
        )

    async def funnel(self, question: AudienceQuery) -> Funnel:
        try:
            for _ in range(CATCH_UP_STEPS):
                self._room.require()
                if not (await self.count() or await self._uncount()):
                    break
        except StoreFull:
            pass  # The result says up to when it counts.
        while (answer := await self._searcher.read(lambda db: funnel.ask(db, question))) is None:
            await self._writer.transact(audience_rollup.reset)
        return answer


def fill(db: sqlite3.Connection, digests: PersonDigests) -> bool:
    """Count the next events; True if more may be left.

    Reads and writes in one transaction, so that a person who is erased in between is not counted.
    """
    events = list(within_bytes(db.execute(_NEXT), STEP_BYTES, lambda row: len(row[4] or b"")))
    if not events:
        return False
    titles: dict[str, str | None] = {}
    rows: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    for seq, source, kind, received_ms, body, reconstructed in events:
        document = document_of(body)
        if document is None:
            continue
        at_ms = (occurred_ms(document) if reconstructed else None) or received_ms
        step, video, title, person = engagement(kind, document)
        video = None if video is None else video[:ID_CHARS]
        if video is not None:
            titles[video] = title[:_TITLE_CHARS] if title else titles.get(video)
        if step is not None:
            number = None if person is None else digests.number(person)
            rows.append((seq, source, video, step, number, at_ms))
        change = change_of(kind, document)
        if change is not None and video is not None:
            changes.append((source, video, change, seq, at_ms))
    bulk.write(db, _NAME, list(titles.items()))
    numbers = dict(db.execute(_NUMBERS, (orjson.dumps(list(titles)).decode(),)).fetchall())
    bulk.write(db, _ADD, [(*row[:2], numbers.get(row[2]), *row[3:]) for row in rows])
    named = [(source, numbers.get(video), *rest) for source, video, *rest in changes]
    bulk.write(db, _CHANGED, [row for row in named if row[1] is not None])
    queries.remember(db, "audience", events[-1][0])
    return funnel.oldest_uncounted(db) is not None


def uncount(db: sqlite3.Connection, *, events: Sequence[int]) -> None:
    """Remove views from the audience and from its days."""
    for event in events:
        audience_rollup.forget_view(db, event)
        db.execute("DELETE FROM audience WHERE event = ?", (event,))


def recognize(db: sqlite3.Connection, digests: PersonDigests) -> None:
    """Define `person_of(kind, body)` for selections: the person whom `fill` will count."""

    def person_of(kind: str, body: bytes | None) -> int | None:
        document = document_of(body)
        if document is None:
            return None
        step, _, _, person = engagement(kind, document)
        return None if step is None or person is None else digests.number(person)

    db.create_function("person_of", 2, person_of, deterministic=True)
