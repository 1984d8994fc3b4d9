"""Relays as processes on one PostgreSQL, behind one balancer, with four destinations."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.guarantees.cluster.balancer import Balancer
from tests.guarantees.cluster.load import Load, Pause
from tests.guarantees.cluster.sinks import TAKES, Weather, tables
from tests.guarantees.process import Relay, until
from tests.postgres.server import PostgresServer
from tests.store.places import PostgresPlace

RELAYS = 3
DRAIN_S = 300.0
FLOWS = 24
PAUSE_S = 0.15
"""Average pause of each connection between two events."""

# The database itself notes each change of an owner: relays that are stopped cannot.
_NOTE_OWNERS = (
    "CREATE TABLE relay.owners (sink text, holder uuid, at_s double precision)",
    "CREATE TABLE relay.known_members (id uuid PRIMARY KEY, address text)",
    """
    CREATE FUNCTION relay.note_owner() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO relay.owners
        VALUES (NEW.sink, NEW.holder, extract(epoch FROM clock_timestamp()));
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION relay.note_member() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO relay.known_members VALUES (NEW.id, NEW.address) ON CONFLICT DO NOTHING;
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER note_owner AFTER UPDATE ON relay.ownership FOR EACH ROW
    WHEN (OLD.holder IS DISTINCT FROM NEW.holder) EXECUTE FUNCTION relay.note_owner()
    """,
    """
    CREATE TRIGGER note_member AFTER INSERT ON relay.members FOR EACH ROW
    EXECUTE FUNCTION relay.note_member()
    """,
    "INSERT INTO relay.known_members SELECT id, address FROM relay.members",
    "INSERT INTO relay.owners SELECT sink, holder, 0 FROM relay.ownership",
)


@dataclass(frozen=True)
class Period:
    """From a fault until the cluster was asked to go on as before."""

    name: str
    from_s: float
    until_s: float


@dataclass(eq=False)
class Cluster:
    place: PostgresPlace
    relays: list[Relay]
    destinations: list[Weather]
    load: Load
    balancer: Balancer
    random: Random
    faults: list[Period] = field(default_factory=list)

    @property
    def server(self) -> PostgresServer:
        return self.place.server

    @asynccontextmanager
    async def fault(self, name: str) -> AsyncIterator[None]:
        """Note that what goes wrong in the block has this cause."""
        from_s = time.monotonic()
        yield
        self.faults.append(Period(name, from_s, time.monotonic()))

    async def start(self) -> None:
        # One after the other: the first makes the schema.
        for relay in self.relays:
            await relay.start()
        await asyncio.to_thread(self._note_owners)
        await self.until_owned()

    def _note_owners(self) -> None:
        for statement in _NOTE_OWNERS:
            self.place.rows(statement)

    async def until_ready(self) -> None:
        for relay in self.relays:
            await until(relay.is_ready, what=f"/readyz of {relay.config.parent.name}")

    async def until_owned(self) -> None:
        """Wait until each sink has an owner that runs."""
        await until(self._is_owned, what="an owner for each sink")

    async def _is_owned(self) -> bool:
        owned = await asyncio.to_thread(self.owners)
        return set(TAKES) <= set(owned)

    def owners(self) -> dict[str, Relay]:
        """Return the relay that holds each sink now."""
        by_url = {relay.admin_url: relay for relay in self.relays}
        rows = self.place.rows(
            "SELECT o.sink, m.address FROM relay.ownership o JOIN relay.members m"
            " ON m.id = o.holder WHERE o.expires_at > clock_timestamp()"
        )
        return {sink: by_url[address] for sink, address in rows if sink in TAKES}

    async def under_way(self, count: int = 30) -> None:
        """Wait until each destination has got so many requests more."""
        ends = {
            destination.name: len(destination.arrivals) + count for destination in self.destinations
        }
        await until(
            lambda: all(
                len(destination.arrivals) >= ends[destination.name]
                for destination in self.destinations
            ),
            what="requests at each destination",
        )

    @asynccontextmanager
    async def under_load(
        self, pause: Pause | None = None, *, flows: int = FLOWS
    ) -> AsyncIterator[None]:
        """Send during the block; then wait until every connection has come to its end.

        The block begins once deliveries are under way.
        """
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(flows):
                tasks.create_task(self.load.flow(stop, pause or self.load.at_random(PAUSE_S)))
            try:
                await self.under_way()
                yield
            finally:
                stop.set()

    async def settle(self) -> None:
        """Wait until nothing is pending any more, and stop all relays."""
        await self.until_ready()
        # The events of a video go one by one, also those of a long outage.
        await until(self._is_settled, what="the end of the backlog", deadline_s=DRAIN_S)
        for relay in self.relays:
            assert await relay.stop() == 0, relay.output()

    async def _is_settled(self) -> bool:
        await asyncio.sleep(0.2)
        return await asyncio.to_thread(self._pending) == 0

    def _pending(self) -> int:
        ((count,),) = self.place.rows(
            "SELECT count(*) FROM relay.deliveries WHERE status = 'pending'"
        )
        return int(count)


@asynccontextmanager
async def cluster(
    folder: Path, server: PostgresServer, *, random: Random, dsn: str = ""
) -> AsyncIterator[Cluster]:
    """Start all but the server; what is left of it goes with the block."""
    async with AsyncExitStack() as stack:
        place = PostgresPlace(server)
        destinations = [
            await stack.enter_async_context(Weather(name, random=random)) for name in TAKES
        ]
        relays = [
            await stack.enter_async_context(
                _relay(folder / f"relay-{number}", place, destinations, dsn=dsn or server.dsn)
            )
            for number in range(1, RELAYS + 1)
        ]
        balancer = await stack.enter_async_context(Balancer([relay.port for relay in relays]))
        load = await stack.enter_async_context(Load(balancer.url, random=random))
        made = Cluster(place, relays, destinations, load, balancer, random)
        await made.start()
        yield made


def _relay(folder: Path, place: PostgresPlace, destinations: list[Weather], *, dsn: str) -> Relay:
    folder.mkdir()
    return Relay(
        folder,
        sinks=tables(destinations),
        store=f'type = "postgres"\ndsn = "env:DATABASE_URL"\nschema = "{place.schema}"\n',
        environ={"DATABASE_URL": dsn, "MEMBER": folder.name},
    )
