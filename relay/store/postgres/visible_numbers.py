"""Numbers up to which every row of a table can be seen.

A number is drawn before the commit, so a smaller one can appear after a larger one. Reading on from
the last number seen would miss it.
"""

import asyncio

from relay.core.errors import StoreUnavailable
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database
from relay.store.replays import Mark

WAIT_S = 0.5
"""Longest wait of a reader who can do without the last rows."""

PATIENCE_S = 5.0
"""Longest wait of others: a commit that waits for a standby can take for ever."""
_POLL_S = 0.005

# A writer locks the table before it draws a number, and until its commit can be seen.
_WRITERS = """
SELECT l.virtualtransaction FROM pg_locks AS l
WHERE l.relation = 'relay.{table}'::regclass AND l.mode = 'RowExclusiveLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LAST = "SELECT coalesce(max({column}), 0) FROM relay.{table}"


class VisibleNumbers:
    """The numbers of one table; no writer waits for a look at them."""

    def __init__(self, reader: Connection, table: str, column: str) -> None:
        self._reader = reader
        self._table = table
        self._writers = _WRITERS.format(table=table)
        self._last = _LAST.format(table=table, column=column)
        self._known = 0

    async def last(self) -> int:
        """Return the last number: every row up to it can be seen by what is read afterwards.

        Raises StoreUnavailable, also while a writer takes too long.
        """
        last = await self._wait(PATIENCE_S)
        if last is None:
            raise StoreUnavailable(
                f"a transaction that writes the table {self._table} "
                f"has been under way for {PATIENCE_S:g} s"
            )
        return last

    async def beyond(self, number: int) -> int:
        """Return a number up to which every row can be seen, larger than this one if there is any.

        Less than that while a writer takes too long; raises StoreError.
        """
        if number >= self._known:
            last = await self._wait(WAIT_S)
            # A failover can have lost the last ones.
            self._known = self._known if last is None else last
        return self._known

    async def _wait(self, limit_s: float) -> int | None:
        """Wait for all that were writing when the last visible row was found; None if too long."""
        last, writers = await self._reader.read(self._look)
        for _ in range(round(limit_s / _POLL_S)):
            if not writers:
                return last
            await asyncio.sleep(_POLL_S)
            writers &= await self._reader.read(self._writing)
        return None

    def _look(self, db: Database) -> tuple[int, set[str]]:
        last = int(db.execute(self._last).fetchall()[0][0])
        return last, self._writing(db)

    def _writing(self, db: Database) -> set[str]:
        return {name for (name,) in db.execute(self._writers).fetchall()}


class LastVisible:
    """The last event and attempt, for one reader who reads on from them."""

    def __init__(self, reader: Connection) -> None:
        # Those of other readers may be of an earlier look.
        self._events = VisibleNumbers(reader, "events", "seq")
        self._attempts = VisibleNumbers(reader, "attempts", "number")
        self._last = Mark(0, 0)

    async def read(self) -> Mark:
        """Return numbers up to which every row can be seen, larger than before if there are any."""
        event, attempt = self._last
        events, attempts = self._events.beyond(event), self._attempts.beyond(attempt)
        self._last = Mark(*await asyncio.gather(events, attempts))
        return self._last
