"""The audience in PostgreSQL: rows derived from events' bodies, in steps after they are accepted.

One member at a time counts, and another one at that moment has nothing to do. The days are made by
the member that does the maintenance, because they are read and counted before they are written.
"""

from collections.abc import Callable, Sequence
from functools import partial

from relay.store.audience import AudienceQuery, Funnel, counting, rollup
from relay.store.audience import funnel as funnels
from relay.store.audience.reads import COUNTED_TO, LAST_COUNTED, LAST_ROLLED_UP, ROLLED_TO
from relay.store.audience.repository import Audience
from relay.store.audience.writes import AudienceWrites
from relay.store.keyed_digests import PersonDigests
from relay.store.ownership import MAINTENANCE
from relay.store.postgres import audience_tables
from relay.store.postgres.audience_tables import (
    PostgresAudienceTables,
    claim,
    state_of_rows,
    wait_for,
)
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.reconstruct import supersede_counted
from relay.store.postgres.shared import PostgresRepository
from relay.store.rows import SUPERSEDED
from relay.store.sql import Sql

_WORK = Sql(f"""
SELECT
    EXISTS (SELECT 1 FROM main.events WHERE seq > {LAST_COUNTED}),
    EXISTS (
        SELECT 1 FROM main.events AS e JOIN main.audience AS a ON a.event = e.seq
        WHERE e.reconstructed = {SUPERSEDED}
    ),
    (SELECT max(event) FROM main.audience),
    {LAST_ROLLED_UP}
""")

Lock = Callable[[Database, str], int | None]
"""`claim` or `wait_for`."""

_SOURCES = """
SELECT source FROM relay.totals UNION SELECT source FROM relay.added_totals ORDER BY source
"""


class PostgresAudience(PostgresRepository, Audience):
    """Counts in the turns that `claim` and `wait_for` give it."""

    _tables = PostgresAudienceTables
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
            is_uncounted and await self._read(AudienceWrites.oldest_uncounted) is not None
        )

    async def count(self, *, upto: int | None = None) -> bool:
        return await self._count(claim, await self.last_event() if upto is None else upto)

    async def last_event(self) -> int:
        return await self._shared.events.last()

    async def count_all(self) -> None:
        # After other members' steps.
        upto = await self.last_event()
        while await self._count(wait_for, upto):
            pass

    async def _count(self, lock: Lock, upto: int) -> bool:
        if await self._read(AudienceWrites.oldest_uncounted) is None:
            return False
        digests = self._shared.digests
        return await self._background.transact(lambda db: fill(db, digests, upto=upto, lock=lock))

    async def _uncount(self) -> bool:
        if not await self._read(AudienceWrites.superseded):
            return False
        return await self._background.transact(_uncount)

    async def _roll_up(self) -> bool:
        """Add the next rows to their days; True if more may be left.

        The rows are read and counted outside of the transaction, which only joins the result with
        the stored days, and drops it where an erasure has removed some of the rows meanwhile.
        """
        batch = await self._read(rollup.next_batch)
        if batch is None:
            return await self._store_week()
        for people in batch.numberings():
            await self._write(partial(AudienceWrites.number, people=people))
        state = partial(state_of_rows, after=batch.after, upto=batch.upto)
        before = await self._reader.read(state)
        if before is None:
            return True
        counted = await batch.count(self._read)

        def add(db: Database) -> None:
            if claim(db, ROLLED_TO) is not None and state(db) == before:
                rollup.add(PostgresAudienceTables(db), counted)

        await self._background.transact(add)
        return True

    async def _write(self, work: Callable[[AudienceWrites], None]) -> None:
        def write(db: Database) -> None:
            if claim(db, ROLLED_TO) is not None:
                work(PostgresAudienceTables(db))

        await self._background.transact(write)

    async def sources(self) -> Sequence[str]:
        rows = await self._reader.read(lambda db: db.execute(_SOURCES).fetchall())
        return [source for (source,) in rows]

    async def _ask(self, question: AudienceQuery) -> Funnel | None:
        return await self._searcher.read(partial(_ask, question=question))

    async def _reset(self) -> None:
        await self._background.transact(_reset)


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
    tables = PostgresAudienceTables(db)
    events = tables.superseded()
    rollup.uncount(tables, events)
    return bool(events)


def _work(db: Database) -> Row:
    """Return whether there are events to count, others to take out, and what may be added up."""
    return db.execute(_WORK).fetchall()[0]


def _reset(db: Database) -> None:
    wait_for(db, ROLLED_TO)
    rollup.reset(PostgresAudienceTables(db))


def _ask(db: Database, question: AudienceQuery) -> Funnel | None:
    with db.snapshot():
        return funnels.ask(PostgresAudienceTables(db), question)
