"""`kill -9` between and within batches loses no event, and repeats no more than is said."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from random import Random

from relay.core.clock import SystemClock
from relay.core.routing import Verdict
from relay.delivery.circuit_breaker import UNSETTLED_PER_SLOT
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.brokers.redis import STREAM, RedisServer
from tests.delivery.dispatching import lead
from tests.guarantees import ledger
from tests.guarantees.conftest import Say
from tests.guarantees.process import Relay, until

EVENTS = 5000
KILLS = 6
CONCURRENCY = 32
SINK = """
[[sink]]
name = "bus"
type = "redis"
url = "{url}"
concurrency = {concurrency}
"""


async def test_kills_among_batches_lose_no_event(tmp_path: Path, random: Random, say: Say) -> None:
    with ExitStack() as stack:
        server = RedisServer(tmp_path)
        stack.callback(server.stop)
        server.start()
        admin = server.admin()
        stack.callback(admin.close)
        sinks = SINK.format(url=server.url, concurrency=CONCURRENCY)
        async with Relay(tmp_path, sinks=sinks) as relay:
            wanted = await _fill(relay.store)
            for _ in range(KILLS):
                enough = admin.xlen(STREAM) + random.randint(1, EVENTS // (2 * KILLS))
                await relay.spawn()
                await until(lambda: admin.xlen(STREAM) >= enough, what="some batches")  # noqa: B023
                await relay.kill()
            assert ledger.pending(relay.store), "all was delivered before the last kill"
            await relay.start()
            await until(lambda: not ledger.pending(relay.store), what="the end of the backlog")
            assert await relay.stop() == 0, relay.output()
        taken = [entry[b"id"].decode() for entry in server.read()]
    assert set(taken) == wanted
    assert set(ledger.read(relay.store).deliveries.values()) == {"delivered"}
    repeated = len(taken) - len(wanted)
    assert repeated <= KILLS * CONCURRENCY * (1 + UNSETTLED_PER_SLOT)
    say(f"{KILLS} kills among the batches of {EVENTS} events: none lost, {repeated} twice")


async def _fill(path: Path) -> set[str]:
    clock = SystemClock()
    store = await open_store(SqliteSettings(path=str(path)), clock=clock)
    verdicts = (Verdict("bus", "takes", ""),)
    events = [lead(f"evt_{number:05}", received_ms=clock.now_ms()) for number in range(EVENTS)]
    for start in range(0, EVENTS, 500):
        part = events[start : start + 500]
        await asyncio.gather(*(store.accept(each, verdicts, lambda _: None) for each in part))
    await store.close()
    return {event.id for event in events}
