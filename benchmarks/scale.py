"""How costs grow: with the events of a store, all of them pending, with the sinks, and on disk.

`python -m benchmarks.scale [EVENTS ...]`, by default from a thousand to a million.
"""

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import acknowledge, backlog, load, requests, rig
from relay.store.sqlite.driver import sqlite3
from tests.ports import free_port

EVENTS = (0, 1_000, 10_000, 100_000, 1_000_000)
SINKS = (1, 10, 50)
SECONDS = 3
SETTLE_S = 5
READS = 5
RATE = 1_000
DELIVERED_S = 60.0


def main() -> None:
    events = tuple(map(int, sys.argv[1:])) or EVENTS
    print(rig.machine())
    rig.table(
        [
            ("pending", "bytes each", "ready after", "resident", "status", "acknowledged a second"),
            *map(_with_events, events),
        ]
    )
    rig.table(
        [
            ("sinks that take every event, and are down", "resident", "acknowledged a second"),
            *map(_with_sinks, SINKS),
        ]
    )
    delivered, removed = _on_disk()
    rig.table(
        [
            (f"an event of {requests.BODY_BYTES} bytes that one sink has received", "bytes"),
            ("with its body", f"{delivered:.0f}"),
            ("after `payload_retention`", f"{removed:.0f}"),
        ]
    )


def _with_events(events: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        relay = rig.Relay(folder, [rig.http_sink(port)])
        uvloop.run(backlog.fill(relay.store, f"sink{port}", requests.bodies(events)))
        size = relay.database.stat().st_size
        with relay.running() as running:
            start_s = running.start_s
            time.sleep(SETTLE_S)
            resident = running.resident_mib()
            status_ms = median(_status_ms(running) for _ in range(READS))
            rate = acknowledge.flood(relay, running, folder, SECONDS)
    return (
        f"{events:,}",
        f"{size / events:.0f}" if events else "",
        f"{start_s:.2f} s",
        f"{resident:.0f} MiB",
        f"{status_ms:.0f} ms",
        f"{rate:.0f}",
    )


def _status_ms(running: rig.Running) -> float:
    began = time.perf_counter()
    running.get("/status")
    return (time.perf_counter() - began) * 1000


def _with_sinks(sinks: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        relay = rig.Relay(Path(name), [rig.http_sink(free_port()) for _ in range(sinks)])
        with relay.running() as running:
            rate = acknowledge.flood(relay, running, Path(name), SECONDS)
            return f"{sinks}", f"{running.resident_mib():.0f} MiB", f"{rate:.0f}"


def _on_disk() -> tuple[float, float]:
    """Return the bytes of a delivered event, with its body and without."""
    port = free_port()
    with rig.destination("sink", port), tempfile.TemporaryDirectory() as name:
        relay = rig.Relay(Path(name), [rig.http_sink(port)])
        with relay.running():
            events = len(uvloop.run(load.paced(relay.listen, rate=RATE, seconds=SECONDS)))
            rig.until(lambda: rig.received(port) >= events, seconds=DELIVERED_S)
        delivered = _packed(relay.database)
        with sqlite3.connect(relay.database) as db:
            # As retention does it.
            db.execute("UPDATE events SET body = NULL, headers = NULL")
        db.close()
        return delivered / events, _packed(relay.database) / events


def _packed(database: Path) -> int:
    """Return the size of a database without its free pages."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("VACUUM")
    return database.stat().st_size


if __name__ == "__main__":
    main()
