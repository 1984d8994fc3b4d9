"""The boundary below which no event is still being accepted."""

import asyncio
from contextlib import closing

import psycopg

from relay.store.postgres import boundary
from relay.store.postgres.driver import Database
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import PostgresPlace
from tests.store.postgres.test_failures import until


def last_seq(place: PostgresPlace) -> int:
    with closing(Database(place.server.dsn, place.schema)) as db:
        return boundary.last_seq(db)


async def test_it_is_the_number_of_the_last_event(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as store:
        assert last_seq(postgres_place) == 0
        await accept(store, event("a"), event("b"))
        ((newest,),) = postgres_place.rows("SELECT max(seq) FROM relay.events")
        assert last_seq(postgres_place) == newest


async def test_it_waits_for_an_acceptance_that_has_drawn_a_number(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = '{}'"

    def is_waiting(kind: str) -> bool:
        return bool(postgres_place.server.execute(waits.format(kind)))

    async with postgres_place.open(clock) as store:
        await accept(store, event("first"))
        with closing(psycopg.connect(postgres_place.server.dsn)) as other:
            # An acceptance of the same event by another relay, whose commit takes long.
            other.execute(
                f"""
                INSERT INTO "{postgres_place.schema}".events
                    (source, id, kind, received_at, digest, headers, body)
                SELECT source, 'a', kind, received_at, digest, headers, body
                FROM "{postgres_place.schema}".events
                """.encode()
            )
            accepting = asyncio.create_task(accept(store, event("a"), event("b")))
            await until(lambda: is_waiting("transactionid"), what="the acceptance waits")
            looking = asyncio.create_task(asyncio.to_thread(last_seq, postgres_place))
            await until(lambda: is_waiting("advisory"), what="the boundary waits for it")
            other.rollback()
        assert await accepting == ["accepted", "accepted"]
        ((newest,),) = postgres_place.rows("SELECT max(seq) FROM relay.events")
        assert await looking == newest
