"""The audience in SQLite: rows derived from events' bodies, in steps after they are accepted."""

from collections.abc import Sequence
from typing import Any

import orjson

from relay.core.errors import StoreFull
from relay.core.event import engagement
from relay.store.audience import AudienceQuery, Funnel
from relay.store.related import Related
from relay.store.sqlite import bulk, funnel, queries
from relay.store.sqlite import related as related_events
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.keys import PersonDigests
from relay.store.sqlite.rows import document_of, within_bytes
from relay.store.sqlite.shared import Part

STEP_ROWS = 200
STEP_BYTES = 1 << 20
"""Limits per transaction, because acknowledgements wait for its end."""

CATCH_UP_STEPS = 50
"""Maximum number of steps that a query waits for."""

_ID_CHARS = 200
_TITLE_CHARS = 300

_NEXT = f"""
SELECT seq, source, kind, received_at,
    iif(kind = 'lead.captured' OR kind GLOB 'video.*', body, NULL)
FROM events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT {STEP_ROWS}
"""
_NAME = """
INSERT INTO videos (id, title) VALUES {rows}
ON CONFLICT (id) DO UPDATE SET title = excluded.title
WHERE excluded.title IS NOT NULL AND excluded.title IS NOT title
"""
_NUMBERS = "SELECT id, number FROM videos WHERE id IN (SELECT value FROM json_each(?))"
_SOURCES = "SELECT DISTINCT source FROM totals ORDER BY source"
_ADD = """
INSERT INTO audience (event, source, video, step, person, at) VALUES {rows}
ON CONFLICT DO NOTHING
"""


class SqliteAudience(Part):
    """Fulfils `relay.store.audience.Audience`."""

    async def fill(self) -> bool:
        self._room.require()
        return await self.count()

    async def count(self) -> bool:
        """Do as `fill`, but also below the floor of free space, because retention depends on it."""
        if await self._reader.read(funnel.oldest_uncounted) is None:
            return False
        return await self._writer.transact(lambda db: fill(db, self._shared.digests))

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
                if not await self.fill():
                    break
        except StoreFull:
            pass  # The result says up to when it counts.
        return await self._searcher.read(lambda db: funnel.ask(db, question))


def fill(db: sqlite3.Connection, digests: PersonDigests) -> bool:
    """Count the next events; True if more may be left.

    Reads and writes in one transaction, so that a person who is erased in between is not counted.
    """
    events = list(within_bytes(db.execute(_NEXT), STEP_BYTES, lambda row: len(row[4] or b"")))
    if not events:
        return False
    titles: dict[str, str | None] = {}
    rows: list[tuple[Any, ...]] = []
    for seq, source, kind, at_ms, body in events:
        document = document_of(body)
        if document is None:
            continue
        step, video, title, person = engagement(kind, document)
        video = None if video is None else video[:_ID_CHARS]
        if video is not None:
            titles[video] = title[:_TITLE_CHARS] if title else titles.get(video)
        if step is not None:
            number = None if person is None else digests.number(person)
            rows.append((seq, source, video, step, number, at_ms))
    bulk.write(db, _NAME, list(titles.items()))
    numbers = dict(db.execute(_NUMBERS, (orjson.dumps(list(titles)).decode(),)).fetchall())
    bulk.write(db, _ADD, [(*row[:2], numbers.get(row[2]), *row[3:]) for row in rows])
    queries.remember(db, "audience", events[-1][0])
    return funnel.oldest_uncounted(db) is not None


def recognize(db: sqlite3.Connection, digests: PersonDigests) -> None:
    """Define `person_of(kind, body)` for selections: the person whom `fill` will count."""

    def person_of(kind: str, body: bytes | None) -> int | None:
        document = document_of(body)
        if document is None:
            return None
        step, _, _, person = engagement(kind, document)
        return None if step is None or person is None else digests.number(person)

    db.create_function("person_of", 2, person_of, deterministic=True)
