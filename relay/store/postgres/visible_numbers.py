"""Numbers up to which every row of a table can be seen.

A number is drawn before the commit, so a smaller one can appear after a larger one. Reading on from
the last number seen would miss it.
"""

import asyncio

from relay.store.postgres.driver import Connection, Database

WAIT_S = 0.5
"""Longest wait for writers; a commit that waits for a standby can take for ever."""
_POLL_S = 0.005

# A writer locks the table before it draws a number, and until its commit can be seen.
_WRITERS = """
SELECT l.virtualtransaction FROM pg_locks AS l
WHERE l.relation = 'relay.{table}'::regclass AND l.mode = 'RowExclusiveLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LAST = "SELECT coalesce(max({column}), 0) FROM relay.{table}"


class VisibleNumbers:
    """The numbers of one table. No writer waits for a look at them, unlike for `boundary`."""

    def __init__(self, reader: Connection, table: str, column: str) -> None:
        self._reader = reader
        self._writers = _WRITERS.format(table=table)
        self._last = _LAST.format(table=table, column=column)
        self._known = 0

    async def beyond(self, number: int) -> int:
        """Return a number up to which every row can be seen, larger than this one if there is any.

        Less than that while a writer takes too long; raises StoreError.
        """
        if number >= self._known:
            self._known = max(self._known, await self._wait())
        return self._known

    async def _wait(self) -> int:
        """Wait for all that were writing when the last visible row was found."""
        last, writers = await self._reader.read(self._look)
        for _ in range(round(WAIT_S / _POLL_S)):
            if not writers:
                return last
            await asyncio.sleep(_POLL_S)
            writers &= await self._reader.read(self._writing)
        return 0

    def _look(self, db: Database) -> tuple[int, set[str]]:
        last = int(db.execute(self._last).fetchall()[0][0])
        return last, self._writing(db)

    def _writing(self, db: Database) -> set[str]:
        return {name for (name,) in db.execute(self._writers).fetchall()}
