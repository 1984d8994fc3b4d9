"""Notifications: which relays hear of new deliveries, and what becomes of a lost connection."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial

from relay.store.postgres.access import Access
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database
from relay.store.postgres.notifications import PAYLOAD_MAX, Notifications
from tests.store.places import PooledPlace, PostgresPlace

DEADLINE_S = 5.0


class Member:
    """One relay's notifications, and what it has heard."""

    def __init__(self, place: PostgresPlace) -> None:
        self.heard: list[Collection[str] | None] = []
        dsn = place.settings().dsn.reveal()
        connection = Connection(Access(dsn, place.schema))
        self.notifications = Notifications(connection, heard=self.heard.append)

    def all_heard(self) -> set[str]:
        return {sink for sinks in self.heard for sink in sinks or ()}

    async def look(self) -> int:
        """Use the connection, as a poll does."""
        return await self.notifications.run(
            lambda db: int(db.execute("SELECT pg_backend_pid()").fetchall()[0][0])
        )


@asynccontextmanager
async def members(place: PostgresPlace, count: int) -> AsyncIterator[list[Member]]:
    found = [Member(place) for _ in range(count)]
    try:
        yield found
    finally:
        for each in found:
            await each.notifications.close()


async def until(fact: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not fact():
            await asyncio.sleep(0.005)
    assert fact(), what


async def test_a_relay_that_waits_hears_the_names_of_sinks(postgres_place: PostgresPlace) -> None:
    async with members(postgres_place, 3) as (sender, first, second):
        await first.look()
        await second.look()
        assert first.notifications.is_listening
        sender.notifications.send(["crm", "sales"])
        await until(lambda: bool(first.heard and second.heard), "no word at both")
        assert first.heard == second.heard == [{"crm", "sales"}]
        assert sender.heard == []


async def test_a_notification_during_a_statement_is_read_after_it(
    postgres_place: PostgresPlace,
) -> None:
    async with members(postgres_place, 2) as (sender, hearer):
        await hearer.look()
        sleep = partial(Database.execute, text="SELECT pg_sleep(0.2)")
        running = asyncio.create_task(hearer.notifications.run(sleep))
        await asyncio.sleep(0)
        sender.notifications.send(["crm"])
        await running
        await until(lambda: hearer.heard == [{"crm"}], "no word")


async def test_many_deliveries_are_few_notifications_and_none_is_left_out(
    postgres_place: PostgresPlace,
) -> None:
    sinks = [f"sink{number}" for number in range(200)]
    async with members(postgres_place, 2) as (sender, hearer):
        await hearer.look()
        for sink in sinks:
            sender.notifications.send([sink])
        await until(lambda: hearer.all_heard() == set(sinks), "not all sinks")
        assert len(hearer.heard) <= 2


async def test_a_list_that_is_too_long_means_all_sinks(postgres_place: PostgresPlace) -> None:
    async with members(postgres_place, 2) as (sender, hearer):
        await hearer.look()
        sender.notifications.send(["x" * PAYLOAD_MAX])
        await until(lambda: hearer.heard == [None], "no word of all sinks")


async def test_a_notification_by_someone_else_means_all_sinks(
    postgres_place: PostgresPlace,
) -> None:
    async with members(postgres_place, 2) as (sender, hearer):
        await hearer.look()
        await sender.notifications.run(partial(Database.notify, payload="vacuumed"))
        await until(lambda: hearer.heard == [None], "no word of all sinks")


async def test_two_schemas_of_one_database_do_not_hear_each_other(
    postgres_place: PostgresPlace,
) -> None:
    async with (
        members(postgres_place, 2) as (sender, hearer),
        members(PostgresPlace(postgres_place.server), 1) as (stranger,),
    ):
        await hearer.look()
        await stranger.look()
        sender.notifications.send(["crm"])
        await until(lambda: bool(hearer.heard), "no word")
        await stranger.look()
        assert stranger.heard == []


async def test_a_relay_detects_a_lost_connection_and_listens_again_after_its_next_poll(
    postgres_place: PostgresPlace,
) -> None:
    async with members(postgres_place, 2) as (sender, hearer):
        pid = await hearer.look()
        postgres_place.server.execute(f"SELECT pg_terminate_backend({pid})")
        await until(lambda: not hearer.notifications.is_listening, "it trusts a dead connection")
        assert await hearer.look() != pid
        assert hearer.notifications.is_listening
        sender.notifications.send(["crm"])
        await until(lambda: hearer.heard == [{"crm"}], "no word")


async def test_behind_a_pooler_a_relay_tells_the_others_and_knows_that_it_hears_nothing(
    postgres_place: PostgresPlace,
) -> None:
    place = PooledPlace()
    place.schema = postgres_place.schema
    async with members(place, 1) as (pooled,), members(postgres_place, 1) as (direct,):
        await direct.look()
        await pooled.look()
        assert not pooled.notifications.is_listening
        pooled.notifications.send(["crm"])
        await until(lambda: direct.heard == [{"crm"}], "no word")
