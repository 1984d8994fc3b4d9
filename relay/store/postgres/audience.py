"""The audience in PostgreSQL: rows derived from events' bodies, in steps after they are accepted.

One member at a time counts, and another one at that moment has nothing to do. The days are made by
the member that does the maintenance, because they are read and counted before they are written.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from relay.store.audience import AudienceQuery, Funnel, counting, rollup
from relay.store.audience import funnel as funnels
from relay.store.audience.related import Related, related
from relay.store.audience.tables import ROLLED_TO
from relay.store.keyed_digests import PersonDigests
from relay.store.ownership import MAINTENANCE
from relay.store.postgres import audience_tables
from relay.store.postgres.audience_tables import (
    COUNTED_TO,
    PostgresAudienceTables,
    claim,
    superseded,
    wait_for,
)
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.funnel_tables import COUNTED_TO as COUNTED_UP_TO
from relay.store.postgres.funnel_tables import ROLLED_TO as ROLLED_UP_TO
from relay.store.postgres.funnel_tables import PostgresFunnelTables, oldest_uncounted
from relay.store.postgres.reconstruct import supersede_counted
from relay.store.postgres.shared import PostgresRepository
from relay.store.rows import SUPERSEDED

_WORK = f"""
SELECT
    EXISTS (SELECT 1 FROM relay.events WHERE seq > {COUNTED_UP_TO}),
    EXISTS (
        SELECT 1 FROM relay.events AS e JOIN relay.audience AS a ON a.event = e.seq
        WHERE e.reconstructed = {SUPERSEDED}
    ),
    (SELECT max(event) FROM relay.audience),
    {ROLLED_UP_TO}
"""

T = TypeVar("T")

Lock = Callable[[Database, str], int | None]
"""`claim` or `wait_for`."""

_SOURCES = """
SELECT source FROM relay.totals UNION SELECT source FROM relay.added_totals ORDER BY source
"""


class PostgresAudience(PostgresRepository):
    """Fulfils `relay.store.audience.Audience`."""

    _round_to: int | None = None
    _without_rollup: Row | None = None
    """What there was to add to the days when that was too little."""

    async def fill(self) -> bool:
        is_uncounted, is_superseded, *rows = await self._reader.read(_work)
        if is_uncounted and await self._count_round():
            return True
        if is_superseded and await self._uncount():
            return True
        is_as_read = not (is_uncounted or is_superseded)
        is_rolled_up = False
        is_known = is_as_read and tuple(rows) == self._without_rollup
        if not is_known and self._shared.fences.holds(MAINTENANCE):
            is_rolled_up = await self._roll_up()
            self._without_rollup = tuple(rows) if is_as_read and not is_rolled_up else None
        return is_rolled_up or (
            is_uncounted and await self._reader.read(oldest_uncounted) is not None
        )

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
        return await self._count(claim, await self.last_event() if upto is None else upto)

    async def last_event(self) -> int:
        return await self._shared.events.last()

    async def count_all(self) -> None:
        """Count every event that is stored by now, after other members' steps."""
        upto = await self.last_event()
        while await self._count(wait_for, upto):
            pass

    async def _count(self, lock: Lock, upto: int) -> bool:
        if await self._reader.read(oldest_uncounted) is None:
            return False
        digests = self._shared.digests
        return await self._shared.background.transact(
            lambda db: fill(db, digests, upto=upto, lock=lock)
        )

    async def _uncount(self) -> bool:
        """Remove views that were reconstructed, and whose original is counted; True if it did."""
        if not await self._reader.read(superseded):
            return False
        return await self._shared.background.transact(_uncount)

    async def _roll_up(self) -> bool:
        """Add the next rows to their days; True if more may be left.

        The rows are read and counted outside of the transaction, which only joins the result with
        the stored days, and drops it where an erasure has removed some of the rows meanwhile.
        """
        batch = await self._read(rollup.next_batch)
        if batch is None:
            return await self._store_week()
        for people in batch.numberings():
            await self._write(partial(PostgresAudienceTables.number, people=people))
        before = await self._read(lambda tables: tables.state_of_rows(batch.after, batch.upto))
        if before is None:
            return True
        counted = await batch.count(self._read)

        def add(tables: PostgresAudienceTables) -> None:
            if tables.state_of_rows(batch.after, batch.upto) == before:
                rollup.add(tables, counted)

        await self._write(add)
        return True

    async def _store_week(self) -> bool:
        week = await self._read(PostgresAudienceTables.missing_week)
        if week is None:
            return False
        await self._write(partial(rollup.store_week, week=week))
        return True

    async def _read(self, work: Callable[[PostgresAudienceTables], T]) -> T:
        return await self._reader.read(lambda db: work(PostgresAudienceTables(db)))

    async def _write(self, work: Callable[[PostgresAudienceTables], None]) -> None:
        """Change the days, unless another member does."""

        def write(db: Database) -> None:
            if claim(db, ROLLED_TO) is not None:
                work(PostgresAudienceTables(db))

        await self._shared.background.transact(write)

    def person(self, address: str) -> str:
        return f"{self._shared.digests.number(address):016x}"

    async def sources(self) -> Sequence[str]:
        rows = await self._reader.read(lambda db: db.execute(_SOURCES).fetchall())
        return [source for (source,) in rows]

    async def related(self, seq: int, *, limit: int) -> Related | None:
        digests = self._shared.digests
        return await self._shared.pager.read(lambda db: related(db, seq, digests, limit=limit))

    async def funnel(self, question: AudienceQuery) -> Funnel:
        upto = await self.last_event()
        for _ in range(counting.CATCH_UP_STEPS):
            if not (await self.count(upto=upto) or await self._uncount()):
                break
        read = partial(_ask, question=question)
        while (answer := await self._searcher.read(read)) is None:
            await self._shared.background.transact(_reset)
        return answer


def fill(db: Database, digests: PersonDigests, *, upto: int, lock: Lock) -> bool:
    """Count the next events up to one; True if more may be left."""
    after = lock(db, COUNTED_TO)
    if after is None:
        return False
    events = audience_tables.uncounted(db, after, upto)
    if not events:
        return False
    counting.count(PostgresAudienceTables(db), events, digests)
    supersede_counted(db, events)
    return events[-1].seq < upto


def _uncount(db: Database) -> bool:
    if claim(db, ROLLED_TO) is None:
        return False
    events = superseded(db)
    rollup.uncount(PostgresAudienceTables(db), events)
    return bool(events)


def _work(db: Database) -> Row:
    """Return whether there are events to count, others to take out, and what may be added up."""
    return db.execute(_WORK).fetchall()[0]


def _reset(db: Database) -> None:
    wait_for(db, ROLLED_TO)
    rollup.reset(PostgresAudienceTables(db))


def _ask(db: Database, question: AudienceQuery) -> Funnel | None:
    with db.snapshot():
        return funnels.ask(PostgresFunnelTables(db), question)
