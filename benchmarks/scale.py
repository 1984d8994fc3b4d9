"""How costs grow: with the events of a store, all of them pending, and with the sinks.

`python -m benchmarks.scale [EVENTS ...]`, by default from a thousand to a million.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import acknowledge, backlog, requests, rig

EVENTS = (0, 1_000, 10_000, 100_000, 1_000_000)
SINKS = (1, 10, 50)
SECONDS = 3
SETTLE_S = 5
READS = 5


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


def _with_events(events: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), rig.free_port()
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
        relay = rig.Relay(Path(name), [rig.http_sink(rig.free_port()) for _ in range(sinks)])
        with relay.running() as running:
            rate = acknowledge.flood(relay, running, Path(name), SECONDS)
            return f"{sinks}", f"{running.resident_mib():.0f} MiB", f"{rate:.0f}"


if __name__ == "__main__":
    main()
