"""What errors mean for the whole store, and how many writes wait for a database that hangs."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from relay.core.clock import SystemClock
from relay.core.errors import StoreBroken, StoreUnavailable
from relay.store.postgres import errors, write_queue
from relay.store.postgres.access import Access
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, Query, Steps
from relay.store.postgres.errors import OutcomeUnknown
from relay.store.postgres.group_commit import GroupCommit
from relay.store.postgres.loop_connection import LoopConnection
from relay.store.postgres.transactions import Transactions
from relay.store.postgres.write_queue import Waiting, WriteQueue
from tests.store.places import PostgresPlace


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (
            psycopg.errors.ReadOnlySqlTransaction(),
            (
                "the database does not write: it is read-only: another server is the primary now "
                "(25006)"
            ),
        ),
        (
            psycopg.errors.CannotConnectNow(),
            "the database does not write: it is starting, stopping or in recovery (57P03)",
        ),
        (psycopg.errors.DeadlockDetected(), "another transaction was in the way (40P01)"),
        (psycopg.errors.LockNotAvailable(), "another transaction was in the way (55P03)"),
        (psycopg.errors.AdminShutdown(), "the connection to the database was lost (57P01)"),
        (psycopg.OperationalError(), "the connection to the database was lost (OperationalError)"),
        (
            psycopg.errors.QueryCanceled(),
            "the server cancelled a statement, as statement_timeout does (57014)",
        ),
        (
            errors.CannotConnect(
                'connection failed: connection to server at "::1", port 5432 failed: '
                'FATAL:  password authentication failed for user "relay"'
            ),
            (
                'the database refuses the relay: connection to server at "::1", port 5432 failed: '
                'password authentication failed for user "relay"; '
                "see user and password in store.dsn"
            ),
        ),
        (OutcomeUnknown(), "whether a write was committed is unknown"),
    ],
)
def test_an_error_of_the_server_refuses_the_whole_batch_for_now(
    error: Exception, meaning: str
) -> None:
    refusal = errors.classify(error)
    assert type(refusal) is StoreUnavailable
    assert str(refusal) == meaning


def test_an_error_of_one_item_says_nothing_of_the_store() -> None:
    for error in (psycopg.errors.UntranslatableCharacter(), psycopg.DataError(), KeyError("x")):
        assert errors.classify(error) is None
    damage = StoreBroken("the store is damaged")
    assert errors.classify(damage) is damage


class Hanging(WriteQueue):
    """A queue whose database answers when a test says so."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock(), committed=lambda _: None, batch_max=2)
        self.answers = asyncio.Event()

    def _answers(self) -> int:
        return 0

    async def _run(self, batch: list[Waiting]) -> list[Any]:
        await self.answers.wait()
        return [waiting.item for waiting in batch]

    async def _run_again(self, batch: list[Waiting]) -> list[Any]:
        return await self._run(batch)

    def _hang_up(self) -> None:
        raise AssertionError("a queue whose database answers has to hang up on nothing")

    async def _close(self) -> None:
        pass

    async def write(self, item: int) -> int:
        written: int = await self._submit(None, item, lambda _: None)
        return written


async def test_a_database_that_hangs_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_queue, "WAITING_MAX", 5)
    queue = Hanging()
    writes = [asyncio.create_task(queue.write(item)) for item in range(8)]
    refused, _ = await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
    assert {str(write.exception()) for write in refused} == {
        "5 writes are already waiting for the database"
    }
    queue.answers.set()
    results = await asyncio.gather(*writes, return_exceptions=True)
    written = [result for result in results if isinstance(result, int)]
    assert written == list(range(5))
    assert await queue.write(9) == 9
    await queue.close()


async def test_catching_up_waits_for_what_is_queued_between_two_that_catch_up(
    postgres_place: PostgresPlace,
) -> None:
    written: list[int] = []

    def write(items: Sequence[int]) -> Steps[Sequence[int]]:
        yield Query("SELECT")
        written.extend(items)
        return items

    connection = LoopConnection(Access.of(postgres_place.settings()))
    queue = GroupCommit(connection, clock=SystemClock(), committed=lambda _: None)
    one = asyncio.create_task(queue.catch_up())
    between = asyncio.create_task(queue.submit(write, 1))
    other = asyncio.create_task(queue.catch_up())
    await other
    assert written == [1]
    await asyncio.gather(one, between)
    await queue.close()


async def test_a_long_transaction_goes_on_while_the_database_answers_each_statement(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "PATIENCE_S", 0.6)
    queue = Transactions(Connection(Access.of(postgres_place.settings())), clock=SystemClock())

    def slow(db: Database, *, statements: int, each_s: float) -> int:
        for _ in range(statements):
            db.execute("SELECT pg_sleep(%s)", (each_s,))
        return statements

    assert await queue.transact(partial(slow, statements=8, each_s=0.15)) == 8
    with pytest.raises(StoreUnavailable, match="has not answered"):
        await queue.transact(partial(slow, statements=1, each_s=20))
    await queue.close()
