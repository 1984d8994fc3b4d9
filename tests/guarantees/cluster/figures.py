"""Measures what a cluster of two costs: `python -m tests.guarantees.cluster.figures`.

Prints the time from a POST on one relay to the request at a far end whose sink the other one owns,
and the transactions with which an idle cluster burdens its database.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import quantiles

import httpx

from tests import scratch
from tests.guarantees.far_ends import FarEnd
from tests.guarantees.process import Relay, http_client, until
from tests.guarantees.traffic import lead, post
from tests.postgres.server import PostgresServer

RATE = 200
"""Events a second."""
FOR_S = 20
SINKS = """
[[sink]]
name = "{name}"
type = "http"
url = "{url}"
events = ["{kind}"]
"""
_OWNER = """
SELECT m.address FROM relay.ownership o JOIN relay.members m ON m.id = o.holder
WHERE o.sink = 'leads' AND o.expires_at > clock_timestamp()
"""
_TRANSACTIONS = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database"


@asynccontextmanager
async def _two(
    folder: Path, server: PostgresServer, far_end: FarEnd
) -> AsyncIterator[tuple[Relay, Relay]]:
    """Give the relay that does not own the sink of leads, and the one that does."""
    sinks = "".join(
        SINKS.format(name=name, url=far_end.url, kind=kind)
        for name, kind in (("leads", "lead.captured"), ("none", "webhook.test"))
    )
    async with AsyncExitStack() as stack:
        relays = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            store = f'type = "postgres"\ndsn = "{server.dsn}"\n'
            relays.append(Relay(folder / name, sinks=sinks, store=store))
            await stack.enter_async_context(relays[-1])
            await relays[-1].start()
        await until(
            lambda: len(server.execute("SELECT DISTINCT holder FROM relay.ownership")) > 1,
            what="a sink for each",
        )
        await until(lambda: bool(server.execute(_OWNER)), what="an owner")
        ((address,),) = server.execute(_OWNER)
        one, two = relays
        yield (one, two) if two.admin_url == address else (two, one)


async def _latencies(relay: Relay, far_end: FarEnd) -> list[float]:
    begun_s: dict[str, float] = {}

    async def send(client: httpx.AsyncClient, event_id: str) -> None:
        begun_s[event_id] = time.monotonic()
        answer = await post(relay.url, lead(event_id), client=client)
        assert answer.is_success

    async with http_client() as client, asyncio.TaskGroup() as tasks:
        from_s = time.monotonic()
        for number in range(RATE * FOR_S):
            await asyncio.sleep(from_s + number / RATE - time.monotonic())
            tasks.create_task(send(client, f"evt_{number:06}"))
    await until(lambda: len(far_end.arrivals) >= len(begun_s), what="all events")
    return [(each.at_s - begun_s[each.key[1]]) * 1000 for each in far_end.arrivals]


async def _idle(server: PostgresServer) -> float:
    """Return transactions a second of each relay, the two reads of this not among them."""
    # The polls have come to their longest interval by then.
    await asyncio.sleep(FOR_S)
    ((before,),) = server.execute(_TRANSACTIONS)
    await asyncio.sleep(FOR_S)
    ((after,),) = server.execute(_TRANSACTIONS)
    return (int(str(after)) - int(str(before)) - 1) / FOR_S / 2


async def main(folder: Path) -> None:
    server = PostgresServer(folder)
    server.create()
    server.start()
    try:
        async with FarEnd("leads") as far_end, _two(folder, server, far_end) as (other, _):
            cuts = quantiles(await _latencies(other, far_end), n=100)
            sys.stdout.write(f"{RATE}/s: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms\n")
            idle = await _idle(server)
            sys.stdout.write(f"idle: {idle:.2f} transactions a second of each relay\n")
    finally:
        server.stop()


if __name__ == "__main__":
    with scratch.on_disk() as made:
        asyncio.run(main(Path(made)))
