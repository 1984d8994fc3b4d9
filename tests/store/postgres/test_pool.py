"""The connections of one relay: `pool_size` of them, the spare ones for operators' reads."""

import asyncio
import os
import socket
from threading import Barrier, BrokenBarrierError

import pytest

from relay.core.errors import StoreUnavailable
from relay.store.postgres.access import Access
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database, Query, completed, psycopg
from relay.store.postgres.loop_connection import LoopConnection
from relay.store.postgres.store import PostgresStore
from tests.conftest import ManualClock
from tests.store.places import PostgresPlace

DEADLINE_S = 30.0


@pytest.mark.parametrize("pool_size", [8, 11])
async def test_a_relay_holds_no_more_connections_than_its_pool(
    postgres_place: PostgresPlace, pool_size: int
) -> None:
    async with postgres_place.open(ManualClock(), pool_size=pool_size) as store:
        assert isinstance(store, PostgresStore)
        reads = (
            reader.read(lambda db: db.execute("SELECT pg_sleep(0.01)").fetchone())
            for reader in (store._shared.reader, store._shared.searcher)
            for _ in range(20)
        )
        await asyncio.gather(*reads)
        text = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'relay'"
        ((count,),) = postgres_place.rows(text)
        assert count <= pool_size


async def test_spare_connections_read_at_once(postgres_place: PostgresPlace) -> None:
    together = Barrier(2)

    def meet(_: Database) -> int:
        return together.wait(DEADLINE_S)

    async with postgres_place.open(ManualClock(), pool_size=9) as store:
        assert isinstance(store, PostgresStore)
        reader = store._shared.reader
        met = await asyncio.gather(reader.read(meet), reader.read(meet))
    assert sorted(met) == [0, 1]


async def test_without_spare_connections_reads_wait_for_each_other(
    postgres_place: PostgresPlace,
) -> None:
    together = Barrier(2)

    def meet(_: Database) -> None:
        with pytest.raises(BrokenBarrierError):
            together.wait(0.05)

    async with postgres_place.open(ManualClock(), pool_size=8) as store:
        assert isinstance(store, PostgresStore)
        reader = store._shared.reader
        await asyncio.gather(reader.read(meet), reader.read(meet))


async def test_a_closed_connection_is_not_made_again(postgres_place: PostgresPlace) -> None:
    settings = postgres_place.settings()
    connection = Connection(Access.of(settings))
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="closed"):
        await connection.read(lambda db: db.execute("SELECT 1").fetchone())
    await closing


async def test_a_closed_connection_of_the_loop_is_not_made_again(
    postgres_place: PostgresPlace,
) -> None:
    settings = postgres_place.settings()
    connection = LoopConnection(Access.of(settings))
    assert await connection.read(Query("SELECT 1")) == [(1,)]
    await connection.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await connection.read(Query("SELECT 1"))


async def test_a_session_that_the_server_ended_is_not_used_again(
    postgres_place: PostgresPlace,
) -> None:
    """The error comes first, and the end of the connection may come much later."""
    settings = postgres_place.settings()
    connection = Connection(Access.of(settings))

    def end(_: Database) -> None:
        raise psycopg.errors.AdminShutdown

    before = await connection.run(lambda db: db)
    with pytest.raises(psycopg.errors.AdminShutdown):
        await connection.run(end)
    assert await connection.run(lambda db: db) is not before
    await connection.close()


@pytest.mark.parametrize(
    ("given", "expected_ms"), [("", 15_000), (" tcp_user_timeout=3000", 3_000)]
)
def test_a_host_that_vanishes_is_given_up_soon(
    postgres_place: PostgresPlace, given: str, expected_ms: int
) -> None:
    with (
        psycopg.connect(completed(postgres_place.server.dsn + given)) as connection,
        socket.socket(fileno=os.dup(connection.fileno())) as tcp,
    ):
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == expected_ms
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
