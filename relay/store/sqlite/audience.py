"""The audience in SQLite: rows derived from events' bodies, in steps after they are accepted."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from relay.core.errors import StoreFull
from relay.store.audience import AudienceQuery, Funnel, counting, rollup
from relay.store.audience import funnel as funnels
from relay.store.audience.related import Related, related
from relay.store.keyed_digests import PersonDigests
from relay.store.sqlite import audience_tables
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import snapshot, sqlite3
from relay.store.sqlite.funnel_tables import SqliteFunnelTables, oldest_uncounted
from relay.store.sqlite.shared import SqliteRepository

T = TypeVar("T")

_SOURCES = "SELECT DISTINCT source FROM totals ORDER BY source"


class SqliteAudience(SqliteRepository):
    """Fulfils `relay.store.audience.Audience`."""

    _round_to: int | None = None

    async def fill(self) -> bool:
        self._room.require()
        if await self._count_round() or await self._uncount() or await self._roll_up():
            return True
        return await self._reader.read(oldest_uncounted) is not None

    async def _count_round(self) -> bool:
        """Count the next of the events that there were when the round began; False at its end.

        Then the days have a turn, also while events come in faster than they are counted.
        """
        if self._round_to is None:
            self._round_to = await self.last_event()
        if await self.count(upto=self._round_to):
            return True
        self._round_to = None
        return False

    async def count(self, *, upto: int | None = None) -> bool:
        """Do as `fill`, but also below the floor of free space, because retention depends on it."""
        if await self._reader.read(oldest_uncounted) is None:
            return False
        end = await self.last_event() if upto is None else upto
        return await self._writer.transact(lambda db: fill(db, self._shared.digests, upto=end))

    async def last_event(self) -> int:
        return await self._reader.read(audience_tables.last_event)

    async def count_all(self) -> None:
        """Count every event that is stored by now."""
        upto = await self.last_event()
        while await self.count(upto=upto):
            pass

    async def _uncount(self) -> bool:
        """Remove views that were reconstructed, and whose original is counted; True if it did.

        Like the rollup not during an erasure, nor during the rollup itself.
        """
        if self._shared.rollup.locked():
            return False
        async with self._shared.rollup:
            events = await self._reader.read(audience_tables.superseded)
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
                await self._write(partial(SqliteAudienceTables.number, people=people))
            counted = await batch.count(self._read)
            await self._write(partial(rollup.add, counted=counted))
        return True

    async def _store_week(self) -> bool:
        week = await self._read(SqliteAudienceTables.missing_week)
        if week is None:
            return False
        await self._write(partial(rollup.store_week, week=week))
        return True

    async def _read(self, work: Callable[[SqliteAudienceTables], T]) -> T:
        return await self._reader.read(lambda db: work(SqliteAudienceTables(db)))

    async def _write(self, work: Callable[[SqliteAudienceTables], None]) -> None:
        await self._writer.transact(lambda db: work(SqliteAudienceTables(db)))

    def person(self, address: str) -> str:
        return f"{self._shared.digests.number(address):016x}"

    async def sources(self) -> Sequence[str]:
        rows = await self._reader.read(lambda db: db.execute(_SOURCES).fetchall())
        return [source for (source,) in rows]

    async def related(self, seq: int, *, limit: int) -> Related | None:
        digests = self._shared.digests
        return await self._shared.pager.read(lambda db: related(db, seq, digests, limit=limit))

    async def funnel(self, question: AudienceQuery) -> Funnel:
        try:
            upto = await self.last_event()
            for _ in range(counting.CATCH_UP_STEPS):
                self._room.require()
                if not (await self.count(upto=upto) or await self._uncount()):
                    break
        except StoreFull:
            pass  # The result says up to when it counts.
        while (answer := await self._searcher.read(lambda db: ask(db, question))) is None:
            await self._write(rollup.reset)
        return answer


def ask(db: sqlite3.Connection, question: AudienceQuery) -> Funnel | None:
    """Count within one snapshot of the audience; None if a stored day is damaged."""
    with snapshot(db):
        return funnels.ask(SqliteFunnelTables(db), question)


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
