"""What a million events cost: memory with all of them pending, and the time to be ready.

`python -m benchmarks.scale [EVENTS]`
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import orjson
import uvloop

from benchmarks import requests, rig
from relay.clock import SystemClock
from relay.event import VIDEO_WATCHED, Event
from relay.routing import Verdict
from relay.store import StoreSettings
from relay.store.sqlite import open_store

WAITERS = 512
SETTLE_S = 15


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        port = rig.free_port()
        relay = rig.Relay(Path(folder), [port])
        uvloop.run(_fill(relay.database, f"sink{port}", events))
        size_mib = relay.database.stat().st_size / (1 << 20)
        with relay.running() as running:
            start_s = running.start_s
            time.sleep(SETTLE_S)
            pending = running.metric("relay_pending_deliveries")
            resident = running.resident_mib()
    with tempfile.TemporaryDirectory() as folder:
        empty = rig.Relay(Path(folder), [rig.free_port()])
        with empty.running() as running:
            empty_start_s, empty_resident = running.start_s, running.resident_mib()
    rig.table(
        [
            ("pending", "store", "start to ready", f"resident after {SETTLE_S} s"),
            ("0", "", f"{empty_start_s:.2f} s", f"{empty_resident:.0f} MiB"),
            (f"{pending:,.0f}", f"{size_mib:.0f} MiB", f"{start_s:.2f} s", f"{resident:.0f} MiB"),
        ]
    )


async def _fill(database: Path, sink: str, events: int) -> None:
    store = await open_store(StoreSettings(path=str(database)), clock=SystemClock())
    verdicts = (Verdict(sink, "takes", ""),)
    bodies = iter(requests.bodies(events))

    async def accept() -> None:
        for body in bodies:
            await store.accept(_event(body), verdicts, lambda _: None)

    async with asyncio.TaskGroup() as group:
        for _ in range(WAITERS):
            group.create_task(accept())
    await store.close()


def _event(body: bytes) -> Event:
    return Event(
        source="main",
        id=orjson.loads(body)["id"],
        kind=VIDEO_WATCHED,
        created_at=None,
        received_ms=time.time_ns() // 1_000_000,
        body=body,
    )


if __name__ == "__main__":
    main()
