"""A relay whose database a newer one migrates goes on if the migration names it, else it ends."""

import asyncio
from pathlib import Path

import pytest

from relay.core import sample_events
from relay.core.errors import StoreTooNew, StoreUnavailable
from relay.store.migrations import Schema
from relay.store.postgres import schema
from relay.store.postgres.ownership import PostgresOwnership
from tests.app.cluster import cluster, settings
from tests.caller import post
from tests.conftest import ManualClock
from tests.store.conformance import accept, event, lease, settlement
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer, until

pytestmark = pytest.mark.long

LOST_S = 5.0
"""Less than the grace of a send, and than the expiry of a lease."""


def migrate(place: PostgresPlace, *, oldest: int) -> None:
    """Note a migration as a newer relay does."""
    place.rows("INSERT INTO relay.migrations VALUES (9999, 'later', '', 0, %s)", oldest)


def sample(name: str) -> bytes:
    return post(sample_events.event("lead.captured", event_id=name).body)


async def test_a_relay_ends_in_order_when_a_newer_one_migrates_the_schema_beyond_it(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    owners = "SELECT sink FROM relay.ownership WHERE holder IS NOT NULL"
    destination.reply = lambda _: None
    ended = pytest.raises(StoreTooNew, match="is number 9999, this relay knows up to")
    with ended as error:
        async with cluster(place, settings(tmp_path, place, destination)) as (member,):
            relay = member.relay
            assert (await relay.ask(sample("under way"))).status == 202
            await until(lambda: len(destination.requests) == 1, what="the send")
            migrate(place, oldest=9999)
            async with asyncio.timeout(LOST_S):
                await until(lambda: relay.lines("relay.stopped") != [], what="its end")
            (line,) = relay.lines("store.too_new")
    assert line["reason"] == str(error.value)
    assert place.rows(owners) == place.rows("SELECT name FROM relay.members") == []
    assert place.rows("SELECT status, tries FROM relay.deliveries") == [("pending", 0)]


async def test_a_relay_goes_on_when_the_migration_names_it(
    tmp_path: Path, place: PostgresPlace, destination: StubServer
) -> None:
    async with cluster(place, settings(tmp_path, place, destination)) as (member,):
        migrate(place, oldest=schema.steps()[-1].number)
        surveys = place.rows("SELECT max(beat_at) FROM relay.members")
        await until(
            lambda: place.rows("SELECT max(beat_at) FROM relay.members") != surveys,
            what="a heartbeat, and with that surveys",
        )
        assert (await member.relay.ask(sample("after"))).status == 202
        await until(lambda: len(destination.requests) == 1, what="the delivery")
        assert member.relay.lines("store.too_new") == []


async def test_nothing_is_written_over_a_schema_that_only_newer_relays_serve(
    place: PostgresPlace, clock: ManualClock
) -> None:
    async with place.open(clock) as store:
        await accept(store, event("before"))
        (delivery,) = (await lease(store)).deliveries
        assert isinstance(store.ownership, PostgresOwnership)
        store.ownership._check(Schema(9999, 9999))
        assert isinstance(await store.ownership.outdated(), StoreTooNew)
        for write in (
            accept(store, event("after")),
            store.settle(settlement(delivery)),
            store.paused_sinks.pause("sales", now_ms=0),
        ):
            with pytest.raises(StoreUnavailable, match="is number 9999, this relay knows up to"):
                await write
