"""How soon an event reaches a sink, and how fast a backlog drains against plain httpx.

`python -m benchmarks.deliver [BACKLOG]`
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

import httpx
import orjson
import uvloop

from benchmarks import load, requests, rig
from tests.ports import free_port

RATE = 200
SECONDS = 20
PLAIN_REQUESTS = 6_000
PLAIN_SHAPES = ((1, 4), (1, 8), (1, 16), (1, 32), (4, 4), (8, 4), (16, 1))
"""Clients and connections of each: what a good hand-written loop would try."""


def main() -> None:
    backlog = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        p50, p99 = _lag(Path(folder))
    print(
        f"from POST to the sink's receipt at {RATE} per second: p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    )
    before = plain(PLAIN_SHAPES)
    with tempfile.TemporaryDirectory() as folder:
        drained = _drain(Path(folder), backlog)
    after = plain(PLAIN_SHAPES)
    best = max(*before.values(), *after.values())
    shapes = {shape: max(before[shape], after[shape]) for shape in PLAIN_SHAPES}
    rig.table(
        [
            ("deliveries to one HTTP sink", "per second", "ratio"),
            *(
                (
                    f"plain httpx, {clients} x {each} connections",
                    f"{rate:.0f}",
                    f"{rate / best:.2f}",
                )
                for (clients, each), rate in shapes.items()
            ),
            (f"relay, backlog of {backlog:,}", f"{drained:.0f}", f"{drained / best:.2f}"),
        ]
    )


def _lag(folder: Path) -> tuple[float, float]:
    port, notes = free_port(), folder / "received"
    relay = rig.Relay(folder, [rig.http_sink(port)])
    with rig.destination("sink", port, str(notes)), relay.running():
        uvloop.run(load.paced(relay.listen, rate=RATE, seconds=2))
        times = uvloop.run(load.paced(relay.listen, rate=RATE, seconds=SECONDS))
        rig.until(lambda: rig.received(port) == RATE * (SECONDS + 2), seconds=30)
    return lags(notes, times)


def lags(notes: Path, times: dict[bytes, tuple[int, int]]) -> tuple[float, float]:
    """Return median and 99th percentile, in ms, of what a sink has noted about a paced load."""
    lines = (line.split() for line in notes.read_text(encoding="utf-8").splitlines())
    received = {event_id: int(at_ns) for event_id, at_ns in lines}
    lags_ms = [
        (received[orjson.loads(body)["id"]] - sent_ns) / 1e6 for body, (sent_ns, _) in times.items()
    ]
    return median(lags_ms), quantiles(lags_ms, n=100)[98]


def _drain(folder: Path, backlog: int) -> float:
    """Deliveries per second over the whole backlog, with the probe and the destination's start."""
    port = free_port()
    relay = rig.Relay(folder, [rig.http_sink(port)])
    with relay.running() as running:
        uvloop.run(load.paced(relay.listen, rate=4_000, seconds=backlog / 4_000))
        with rig.destination("sink", port):
            rig.until(lambda: rig.received(port) > 0, seconds=90)
            started, first = time.monotonic(), rig.received(port)
            rig.until(lambda: rig.received(port) >= backlog, seconds=600)
            took_s = time.monotonic() - started
            # The gauge is up to a second behind.
            rig.until(lambda: running.metric("relay_pending_deliveries") == 0, seconds=30)
    return (backlog - first) / took_s


def plain(shapes: Iterable[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Return the requests per second of plain httpx, by clients and connections of each."""
    port = free_port()
    with rig.destination("sink", port):
        return {shape: uvloop.run(_post(port, *shape)) for shape in shapes}


async def _post(port: int, clients: int, connections: int) -> float:
    """Requests per second of plain httpx, each connection kept busy."""
    url = httpx.URL(f"http://127.0.0.1:{port}/hook")
    todo = iter(requests.bodies(PLAIN_REQUESTS))
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    pools = [httpx.AsyncClient(trust_env=False, limits=limits) for _ in range(clients)]

    async def worker(pool: httpx.AsyncClient) -> None:
        for body in todo:
            answer = await pool.post(url, content=body, headers={"webhook-id": "x"})
            answer.raise_for_status()

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for pool in pools:
            for _ in range(connections):
                group.create_task(worker(pool))
    rate = PLAIN_REQUESTS / (time.monotonic() - started)
    for pool in pools:
        await pool.aclose()
    return rate


if __name__ == "__main__":
    main()
