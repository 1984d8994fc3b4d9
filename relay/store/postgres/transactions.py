"""Longer writes, one after another, each in a transaction of its own on a thread."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from relay.core.clock import Clock
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database
from relay.store.postgres.errors import OutcomeUnknown
from relay.store.postgres.write_queue import CONFIRM, Waiting, WriteQueue, nothing

Result = TypeVar("Result")
Work = Callable[[Database], Result]
"""It may run twice: again on a new connection when the outcome of a commit is unknown."""


class Transactions(WriteQueue):
    """Queues work for one connection."""

    def __init__(self, connection: Connection, *, clock: Clock) -> None:
        super().__init__(clock=clock, committed=nothing, batch_max=1)
        self._connection = connection

    async def transact(
        self, work: Work[Result], done: Callable[[Result], None] = nothing
    ) -> Result:
        """Run work in a transaction of its own; return its result once it is committed.

        Cancelling the wait does not withdraw it: `done` is still called with the result.
        Raises StoreError.
        """

        def transaction(db: Database) -> Result:
            with db.transaction():
                return work(db)

        return await self.run(transaction, done)

    async def run(self, work: Work[Result], done: Callable[[Result], None] = nothing) -> Result:
        """Run work whose statements commit by themselves; otherwise like `transact`."""
        result: Result = await self._submit(work, None, done)
        return result

    async def execute(self, sql: str, values: Mapping[str, Any], /) -> None:
        """Run one statement; raises StoreError."""
        await self.run(lambda db: db.execute(sql, values).rowcount)

    async def _run(self, batch: list[Waiting]) -> list[Any]:
        return await self._connection.run(lambda db: [_undoubted(db, batch[0].write)])

    async def _run_again(self, batch: list[Waiting]) -> list[Any]:
        def again(db: Database) -> Any:
            result = batch[0].write(db)
            # It may have found all of it done, and that is only certain after another write.
            db.execute(CONFIRM.text)
            return result

        return await self._connection.run(lambda db: [_undoubted(db, again)])

    def _answers(self) -> int:
        return self._connection.answers

    def _hang_up(self) -> None:
        self._connection.hang_up()

    async def _close(self) -> None:
        await self._connection.close()


def _undoubted(db: Database, work: Work[Result]) -> Result:
    db.is_in_doubt = False
    result = work(db)
    if db.is_in_doubt:
        raise OutcomeUnknown
    return result
