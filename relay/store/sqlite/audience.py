"""The audience in SQLite, whose days are changed by one writer, but not during an erasure."""

from collections.abc import Callable, Sequence
from functools import partial

from relay.store.audience import AudienceQuery, Funnel, counting, rollup
from relay.store.audience import funnel as funnels
from relay.store.audience.repository import Audience
from relay.store.audience.writes import AudienceWrites
from relay.store.keyed_digests import PersonDigests
from relay.store.sqlite import audience_tables
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import snapshot, sqlite3
from relay.store.sqlite.shared import SqliteRepository

_SOURCES = "SELECT DISTINCT source FROM totals ORDER BY source"
_LAST_EVENT = "SELECT coalesce(max(seq), 0) FROM events"


class SqliteAudience(SqliteRepository, Audience):
    """Changes days, which takes several transactions, while `Shared.rollup` is held."""

    _tables = SqliteAudienceTables

    async def fill(self) -> bool:
        self._room.require()
        if await self._count_round() or await self._uncount() or await self._roll_up():
            return True
        return await self._read(AudienceWrites.oldest_uncounted) is not None

    async def count(self, *, upto: int | None = None) -> bool:
        if await self._read(AudienceWrites.oldest_uncounted) is None:
            return False
        end = await self.last_event() if upto is None else upto
        return await self._writer.transact(lambda db: fill(db, self._shared.digests, upto=end))

    async def count_all(self) -> None:
        upto = await self.last_event()
        while await self.count(upto=upto):
            pass

    async def last_event(self) -> int:
        return await self._reader.read(lambda db: int(db.execute(_LAST_EVENT).fetchone()[0]))

    async def sources(self) -> Sequence[str]:
        rows = await self._reader.read(lambda db: db.execute(_SOURCES).fetchall())
        return [source for (source,) in rows]

    async def _uncount(self) -> bool:
        if self._shared.rollup.locked():
            return False
        async with self._shared.rollup:
            events = await self._read(AudienceWrites.superseded)
            if events:
                await self._write(partial(rollup.uncount, events=events))
        return bool(events)

    async def _roll_up(self) -> bool:
        """Add the next rows to their days; True if more may be left.

        The rows are read and counted by a reader, in parts; the writer only joins the result with
        the stored days. Not during an erasure: a person's rows are removed with the numbers in the
        days.
        """
        if self._shared.rollup.locked():
            return False
        async with self._shared.rollup:
            batch = await self._read(rollup.next_batch)
            if batch is None:
                return await self._store_week()
            for people in batch.numberings():
                await self._write(partial(AudienceWrites.number, people=people))
            counted = await batch.count(self._read)
            await self._write(partial(rollup.add, counted=counted))
        return True

    async def _write(self, work: Callable[[AudienceWrites], None]) -> None:
        await self._writer.transact(lambda db: work(SqliteAudienceTables(db)))

    async def _ask(self, question: AudienceQuery) -> Funnel | None:
        return await self._searcher.read(partial(ask, question=question))

    async def _reset(self) -> None:
        await self._write(rollup.reset)


def ask(db: sqlite3.Connection, question: AudienceQuery) -> Funnel | None:
    """Count within one snapshot of the audience; None if a stored day is damaged."""
    with snapshot(db):
        return funnels.ask(SqliteAudienceTables(db), question)


def fill(db: sqlite3.Connection, digests: PersonDigests, *, upto: int) -> bool:
    """Count the next events up to one; True if more may be left.

    Reads and writes in one transaction, so that a person who is erased in between is not counted.
    """
    events = audience_tables.uncounted(db, upto)
    if not events:
        return False
    counting.count(SqliteAudienceTables(db), events, digests)
    return events[-1].seq < upto


def recognize(db: sqlite3.Connection, digests: PersonDigests) -> None:
    """Define `person_of(kind, body)` for selections: the person whom `fill` will count."""
    person_of = partial(counting.person_of, digests=digests)
    db.create_function("person_of", 2, person_of, deterministic=True)
