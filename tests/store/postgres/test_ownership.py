"""Ownership of sinks by several relays of one real database."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Self
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from relay.core.cluster.statements import Answer, Beat, Fence, Renewed
from relay.core.cluster.timing import LEASE_S, TAKEOVER_S, TRUST_S
from relay.core.config_values import Duration
from relay.core.errors import StoreUnavailable
from relay.core.sink_status import SinkStatus, State
from relay.store.ownership import MAINTENANCE, Introduction
from relay.store.postgres import members, orders, schema
from relay.store.postgres.access import Access
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database
from relay.store.postgres.fences import HISTORY
from relay.store.postgres.leases import Leases
from relay.store.postgres.ownership import PostgresOwnership, boottime_s
from tests.postgres.server import PostgresServer
from tests.store.places import PostgresPlace, shared_pooler

SINKS = ("archive", "crm", "queue", "sales")
GRACE = Duration.parse("1s")


class Relay:
    """One member, whose dispatchers only note what they are told."""

    def __init__(self, name: str, place: PostgresPlace, dsn: str | None = None) -> None:
        self.name = name
        self.sending: set[str] = set()
        self.woken: list[str] = []
        self.refusals = 0
        self.applied: list[set[str]] = []
        self.failing = False
        self.state: State = "parked"
        self._connections = [
            Connection(Access(dsn or place.server.dsn, place.schema)) for _ in range(3)
        ]
        control, poller, reader = self._connections
        self.told_of_reconstructions = 0
        self.ownership = PostgresOwnership(
            control, poller, reader, Leases(), on_reconstructions=self._told
        )
        self.ownership.introduce(
            Introduction(
                name=name, version="1", revision=f"r{name}", address=f"http://{name}", config="c"
            )
        )
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.ownership.configure(SINKS)
        self._running = asyncio.create_task(self.ownership.run(self, self.apply_orders))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ownership.leave()
        await self.die()

    async def die(self) -> None:
        """End as a killed relay does, for the others."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))
            self._running = None
            await self.ownership.close()
            await self._connections[2].cut_off()

    async def begin(self, sink: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("the database was away for a moment")
        self.sending.add(sink)

    async def end(self, sink: str, *, grace: Duration) -> None:
        self.sending.discard(sink)

    async def apply_orders(self, retried: Collection[str]) -> None:
        self.applied.append(set(retried))
        if self.failing:
            raise StoreUnavailable("the database is away")

    def _told(self) -> None:
        self.told_of_reconstructions += 1

    @property
    def is_told(self) -> bool:
        """Whether it hears of what other relays accept."""
        return self.ownership._poller.is_listening

    async def order(self, work: Callable[[Database], None]) -> None:
        """Do what another relay does in a transaction."""
        await self._connections[2].run(work)

    def wake(self, sink: str) -> None:
        self.woken.append(sink)

    def statuses(self) -> Mapping[str, SinkStatus]:
        return {
            sink: SinkStatus(name=sink, type="http", state=self.state, last_error=self.name)
            for sink in SINKS
        }


async def until(fact: Callable[[], bool], within_s: float, what: str) -> None:
    end_s = boottime_s() + within_s
    while not fact():
        assert boottime_s() < end_s, what
        await asyncio.sleep(0.02)


def all_sent(relays: Iterable[Relay]) -> bool:
    """Whether each sink, and the maintenance, has exactly one relay."""
    owned = sorted(sink for relay in relays for sink in relay.sending)
    return owned == sorted((*SINKS, MAINTENANCE))


def are_even(relays: Iterable[Relay]) -> bool:
    counts = [len(relay.sending) for relay in relays]
    return max(counts) - min(counts) <= 1


async def migrated(place: PostgresPlace) -> PostgresPlace:
    connection = Connection(Access(place.server.dsn, place.schema))
    await connection.run(lambda db: schema.migrate(db, place.schema, now_ms=0))
    await connection.close()
    return place


@pytest.fixture
async def place(postgres_place: PostgresPlace) -> PostgresPlace:
    return await migrated(postgres_place)


@asynccontextmanager
async def cluster(place: PostgresPlace, *names: str) -> AsyncIterator[list[Relay]]:
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(Relay(name, place)) for name in names]
        await until(lambda: all_sent(relays) and are_even(relays), 20, "no even spread")
        yield relays


async def test_sinks_are_spread_evenly_and_a_newcomer_gets_its_share(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as relays, Relay("c", place) as newcomer:
        everyone = [*relays, newcomer]
        await until(lambda: all_sent(everyone) and are_even(everyone), 20, "no even spread")


async def test_a_relay_that_leaves_hands_its_sinks_over_at_once(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await first.ownership.leave()
        assert not first.sending
        await until(lambda: all_sent([second]), 4, "sinks without an owner")


@pytest.mark.long
async def test_the_sinks_of_a_killed_relay_have_a_new_owner_in_time(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await first.die()
        await until(lambda: all_sent([second]), TAKEOVER_S, "sinks without an owner")


@pytest.mark.long
async def test_a_relay_that_cannot_reach_the_database_stops_before_another_takes_over(
    own_server: PostgresServer,
) -> None:
    place = await migrated(PostgresPlace(own_server))
    async with cluster(place, "a") as (relay,):
        own_server.freeze()
        await until(lambda: not relay.sending, TRUST_S + 1, "it still sends")
        own_server.thaw()
        await until(lambda: all_sent([relay]), LEASE_S + 5, "sinks without an owner")


class Beats:
    """Heartbeats of a member that holds all sinks under their first fence."""

    def __init__(self, place: PostgresPlace) -> None:
        self._connection = Connection(Access(place.server.dsn, place.schema))
        self._member = uuid4()
        ((self.history,),) = place.rows(f"SELECT {HISTORY}")
        place.rows(
            "INSERT INTO relay.ownership (sink, holder, fence, expires_at)"
            " SELECT unnest(%s::text[]), %s, 1, clock_timestamp() + interval '9 s'",
            list(SINKS),
            self._member,
        )

    async def send(self, *leases: tuple[str, Fence]) -> Answer:
        statement = Beat(str(self._member), SINKS, leases)
        me = Introduction(name="a", version="1", revision="r", address="http://a", config="c")
        work = partial(members.run, statement=statement, me=me, statuses={})
        return (await self._connection.run(work)).answer

    async def aclose(self) -> None:
        await self._connection.close()


async def test_a_lease_of_before_a_failover_is_not_renewed(place: PostgresPlace) -> None:
    async with aclosing(Beats(place)) as beats:
        before, now = ("crm", Fence("0000FFFF", 1)), ("crm", Fence(beats.history, 1))
        assert await beats.send(before) == Renewed(frozenset())
        assert await beats.send(now) == Renewed(frozenset({now}))


async def test_a_heartbeat_locks_the_sinks_by_name_so_that_settlements_can(
    place: PostgresPlace,
) -> None:
    lock = sql.SQL("SELECT FROM {}.ownership WHERE sink = %s FOR SHARE NOWAIT").format(
        sql.Identifier(place.schema)
    )

    def is_waiting() -> bool:
        return bool(place.server.execute("SELECT 1 FROM pg_locks WHERE NOT granted"))

    async with aclosing(Beats(place)) as beats:
        leases = [(sink, Fence(beats.history, 1)) for sink in ("sales", "crm")]
        with psycopg.connect(place.server.dsn) as settling:
            settling.execute(lock, ("crm",))
            beating = asyncio.create_task(beats.send(*leases))
            await until(is_waiting, 5, "the heartbeat does not wait")
            settling.execute(lock, ("sales",))
        assert await beating == Renewed(frozenset(leases))


async def test_members_see_each_other_and_how_the_sinks_are(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        known = await first.ownership.cluster()
        assert known.free == ()
        assert [
            (each.name, each.revision, each.address, each.is_self) for each in known.members
        ] == [("a", "ra", "http://a", True), ("b", "rb", "http://b", False)]
        assert {sink for each in known.members for sink in each.sinks} == set(SINKS)
        elsewhere = second.sending - {MAINTENANCE}
        await until(
            lambda: elsewhere == set(first.ownership.statuses()), 8, "no word of the others' sinks"
        )
        assert {each.last_error for each in first.ownership.statuses().values()} == {"b"}


async def test_a_state_that_only_a_newer_version_knows_is_left_out(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await until(lambda: bool(first.ownership.statuses()), 8, "no word of the others' sinks")
        second.state = "resting"  # type: ignore[assignment]
        await until(lambda: not first.ownership.statuses(), 8, "the old states are still there")
        assert all_sent((first, second))


async def test_an_accepted_event_wakes_the_owners(place: PostgresPlace) -> None:
    async with cluster(place, "a") as (relay,):
        place.rows(
            "INSERT INTO relay.events (source, id, kind, received_at, digest)"
            " VALUES ('main', 'x', 'k', 0, '')"
        )
        await until(lambda: set(SINKS) <= set(relay.woken), 2, "a sink was not woken")


async def test_every_member_applies_each_order_even_if_it_owns_no_sink(
    place: PostgresPlace,
) -> None:
    async with cluster(place, "a") as (owner,), Relay("b", place) as idle:
        idle.ownership.configure(())
        relays = [owner, idle]
        await until(lambda: [each.applied for each in relays] == [[set()]] * 2, 4, "no first look")
        await owner.order(lambda db: orders.count(db, "crm"))
        await until(
            lambda: [each.applied[-1] for each in relays] == [{"crm"}] * 2, 4, "no sink to be tried"
        )
        await owner.order(orders.count)
        await until(
            lambda: [each.applied[-1] for each in relays] == [set()] * 2, 4, "no order was applied"
        )


async def test_an_order_that_could_not_be_applied_is_applied_again(place: PostgresPlace) -> None:
    async with cluster(place, "a") as (relay,):
        relay.failing = True
        await relay.order(lambda db: orders.count(db, "crm"))
        await until(lambda: relay.applied.count({"crm"}) > 1, 4, "applied once")
        relay.failing = False
        before = len(relay.applied)
        await until(lambda: len(relay.applied) > before, 4, "not applied again")


async def test_a_member_is_away_once_its_heartbeats_have_stopped(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await second.die()
        place.rows("UPDATE relay.members SET beat_at = beat_at - interval '15 s' WHERE name = 'b'")
        known = await first.ownership.cluster()
        assert [each.name for each in known.away] == ["b"]
        assert [each.name for each in known.live] == ["a"]


@pytest.mark.long
async def test_a_member_that_was_killed_and_has_started_again_is_not_away(
    place: PostgresPlace,
) -> None:
    async with Relay("a", place) as first:
        await until(lambda: all_sent([first]), 20, "sinks without an owner")
        await first.die()
        place.rows("UPDATE relay.members SET beat_at = beat_at - interval '15 s'")
        async with cluster(place, "a") as (again,):
            assert [each.is_away for each in (await again.ownership.cluster()).members] == [False]


@pytest.mark.parametrize(
    ("passed", "owns", "is_known"),
    [
        ("59 min", False, True),
        ("61 min", False, False),
        ("61 min", True, True),
        ("25 h", True, False),
    ],
)
async def test_a_member_that_is_away_and_owns_nothing_is_forgotten_after_an_hour(
    place: PostgresPlace, passed: str, owns: bool, is_known: bool
) -> None:
    async with cluster(place, "a") as (relay,):
        gone = uuid4()
        place.rows(
            "INSERT INTO relay.members VALUES (%s, 'gone', '1', 'http://gone', 'c', '{}',"
            f" clock_timestamp() - interval '2 d', clock_timestamp() - interval '{passed}')",
            gone,
        )
        if owns:
            place.rows("INSERT INTO relay.ownership (sink, holder) VALUES ('left', %s)", gone)
        beats_s = {each.beat_ms for each in (await relay.ownership.cluster()).live}

        async def names() -> list[str]:
            return [each.name for each in (await relay.ownership.cluster()).members]

        async with asyncio.timeout(10):
            while {each.beat_ms for each in (await relay.ownership.cluster()).live} == beats_s:
                await asyncio.sleep(0.05)
        assert await names() == (["a", "gone"] if is_known else ["a"])


async def test_an_acceptance_wakes_the_owner_at_another_relay_at_once(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        (sink, *_) = second.sending - {MAINTENANCE}
        # A look finds nothing here: only what is announced can wake a sink.
        await until(lambda: second.is_told, 5, "no connection that listens")
        second.woken.clear()
        first.ownership.accepted([sink])
        await until(lambda: second.woken == [sink], 5, "the sink was not woken")


async def test_a_relay_announces_nothing_for_its_own_sinks(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await until(lambda: first.is_told and second.is_told, 5, "no connection that listens")
        (own, *_) = first.sending - {MAINTENANCE}
        (other, *_) = second.sending - {MAINTENANCE}
        second.woken.clear()
        first.ownership.accepted([own])
        first.ownership.accepted([own, other])
        await until(lambda: bool(second.woken), 5, "the sink was not woken")
        assert second.woken == [other]


async def test_the_other_relays_are_notified_of_reconstructions(place: PostgresPlace) -> None:
    async with cluster(place, "a", "b") as (first, second):
        await until(lambda: first.is_told and second.is_told, 5, "no connection that listens")
        own, others = first.told_of_reconstructions, second.told_of_reconstructions
        first.ownership.reconstructed()
        await until(lambda: second.told_of_reconstructions == others + 1, 5, "no word of them")
        assert first.told_of_reconstructions == own


async def test_a_sink_is_free_once_no_member_has_taken_it_over_in_time(
    place: PostgresPlace,
) -> None:
    async with cluster(place, "a") as (relay,):

        async def free() -> list[str]:
            return [each.name for each in (await relay.ownership.cluster()).free]

        await relay.die()
        place.rows("UPDATE relay.ownership SET expires_at = clock_timestamp() - interval '14 s'")
        async with Relay("b", place) as observer:
            place.rows(
                "UPDATE relay.ownership SET expires_at = clock_timestamp() - interval '16 s'"
                " WHERE sink = 'crm'"
            )
            known = await observer.ownership.cluster()
            assert [each.name for each in known.free] == ["crm"]


async def test_a_begin_that_finds_the_database_away_is_repeated(place: PostgresPlace) -> None:
    relay = Relay("a", place)
    relay.refusals = 2
    async with relay:
        await until(lambda: all_sent([relay]), 10, "sinks without an owner")


async def test_an_event_that_is_committed_late_is_news(place: PostgresPlace) -> None:
    insert = (
        "INSERT INTO relay.events (seq, source, id, kind, received_at, digest)"
        " SELECT seq, 'main', seq::text, 'k', 0, ''"
        " FROM generate_series(%s::bigint, %s::bigint) AS seq"
    )
    connection = Connection(Access(place.server.dsn, place.schema))
    place.rows(insert, 1, 998)
    place.rows(insert, 1000, 1200)
    before = await connection.run(members.news)
    assert await connection.run(members.news) == before
    place.rows(insert, 999, 999)
    assert await connection.run(members.news) != before
    await connection.close()


async def test_a_relay_behind_a_pooler_reads_of_reconstructions_with_each_survey(
    place: PostgresPlace,
) -> None:
    async with Relay("a", place, shared_pooler().dsn) as relay:
        await until(lambda: relay.told_of_reconstructions >= 2, 5, "no second look")
        assert not relay.is_told
