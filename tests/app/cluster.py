"""Several relays on one PostgreSQL, in the process of the test."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from relay import config
from relay.core.clock import Clock
from relay.core.sink_status import SinkStatus
from tests.guarantees.process import until
from tests.operator import ADMIN, Operator, operating
from tests.service import ENVIRON, SINK, Relay, serving
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

DOCUMENT = """
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[store]
type = "postgres"
dsn = "{dsn}"
schema = "{schema}"

[[source]]
name = "main"
path = "/webhooks"
secrets = ["env:RELAY_SECRET"]
"""
SALES = "sales"


@dataclass(frozen=True)
class Member:
    """One relay and its operator."""

    relay: Relay
    operator: Operator

    def condition(self, sink: str = SALES) -> SinkStatus:
        return self.relay.service.supervisor.statuses()[sink]

    def owns(self, sink: str = SALES) -> bool:
        return not self.condition(sink).is_elsewhere


def settings(
    folder: Path, place: PostgresPlace, destination: StubServer, *, more: str = ""
) -> config.Config:
    """Load a config with one sink."""
    folder.mkdir(exist_ok=True)
    sink = SINK.format(name=SALES, url=destination.url("/"), more=more)
    document = DOCUMENT.format(dsn=place.server.dsn, schema=place.schema)
    file = folder / "config.toml"
    file.write_text(f"{document}{ADMIN}{sink}", encoding="utf-8")
    return config.load(file, ENVIRON)


@asynccontextmanager
async def cluster(
    place: PostgresPlace, *configs: config.Config, clocks: Sequence[Clock | None] = ()
) -> AsyncIterator[list[Member]]:
    """Run relays until the block ends; it begins once each owns something, and one the sink.

    `clocks` are those of the relays' machines, in the same order.
    """
    async with AsyncExitStack() as stack:
        members: list[Member] = []
        for each, clock in zip_longest(configs, clocks):
            relay = await stack.enter_async_context(serving(each, clock=clock))
            members.append(Member(relay, await stack.enter_async_context(operating(relay))))
        await until(
            lambda: _owners(place) == len(members) and sum(each.owns() for each in members) == 1,
            what="an owner of each sink",
        )
        yield members


def _owners(place: PostgresPlace) -> int:
    """Return how many relays own something; 0 while a sink has no owner."""
    holders = [holder for (holder,) in place.rows("SELECT holder FROM relay.ownership")]
    return 0 if None in holders else len(set(holders))
