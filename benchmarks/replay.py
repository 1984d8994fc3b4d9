"""A replay of many delivered events: its rate, its memory, and what live events notice of it.

`python -m benchmarks.replay [EVENTS]`
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import httpx
import orjson
import uvloop

from benchmarks import backlog, load, requests, rig
from tests.ports import free_port

RATE = 200
SECONDS = 20
LOOK_S = 0.25
DEADLINE_S = 900.0

Times = dict[bytes, tuple[int, int]]


class Replayed(NamedTuple):
    """Deliveries per second, from the beginning to the last; the most memory meanwhile."""

    per_second: float
    resident_mib: float


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(rig.machine())
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), events)


def _measure(folder: Path, events: int) -> None:
    port, notes = free_port(), folder / "received"
    relay = rig.Relay(folder, [rig.http_sink(port)])
    uvloop.run(backlog.fill(relay.store, f"sink{port}", requests.bodies(events)))
    stored = {"until_ms": time.time_ns() // 1_000_000 + 1}
    with rig.destination("sink", port, str(notes)), relay.running() as running:
        drained = _drain(port, events)
        _paced(relay, seconds=2)
        before_mib = running.resident_mib()
        replayed = _replay(running, port, stored, events)
        after_mib = running.resident_mib()
        alone = _paced(relay, seconds=SECONDS)
        begun = running.post("/replays", stored)
        beside = _paced(relay, seconds=SECONDS)
        now = running.get(f"/replays/{begun['id']}")
        if now["done"] >= events:
            sys.exit("the replay was over before the live events were: take more events")
        running.post(f"/replays/{begun['id']}/cancel", None)
        time.sleep(1)
    received = _received(notes)
    rig.table(
        [
            (f"{events:,} stored events to one HTTP sink", "per second", "ratio"),
            ("drained as a live backlog", f"{drained:.0f}", "1.00"),
            ("replayed", f"{replayed.per_second:.0f}", f"{replayed.per_second / drained:.2f}"),
        ]
    )
    rig.table(
        [
            ("resident memory", "MiB"),
            ("before the replay", f"{before_mib:.0f}"),
            ("at most during it", f"{replayed.resident_mib:.0f}"),
            ("after it", f"{after_mib:.0f}"),
        ]
    )
    rig.table(
        [
            (f"from POST to the sink's receipt at {RATE} per second", "p50", "p99"),
            ("without a replay", *_lags(alone, received)),
            (
                f"during one, which made {now['done'] / SECONDS:.0f} per second",
                *_lags(beside, received),
            ),
        ]
    )


def _drain(port: int, events: int) -> float:
    _until(lambda: _count(port) > 0)
    started, first = time.monotonic(), _count(port)
    _until(lambda: _count(port) >= events)
    return (events - first) / (time.monotonic() - started)


def _replay(running: rig.Running, port: int, stored: dict[str, int], events: int) -> Replayed:
    end = _count(port) + events
    begun = running.post("/replays", stored)
    if begun["total"] != events:
        sys.exit(f"a replay of {begun['total']} instead of {events}")
    started = time.monotonic()
    memory: list[float] = []

    def is_over() -> bool:
        memory.append(running.resident_mib())
        return _count(port) >= end

    _until(is_over)
    took_s = time.monotonic() - started
    _until(lambda: running.get(f"/replays/{begun['id']}")["state"] == "done")
    return Replayed(events / took_s, max(memory))


def _paced(relay: rig.Relay, *, seconds: int) -> Times:
    return uvloop.run(load.paced(relay.listen, rate=RATE, seconds=seconds))


def _received(notes: Path) -> dict[str, int]:
    """When each event came first (monotonic ns)."""
    received: dict[str, int] = {}
    for line in notes.read_text(encoding="utf-8").splitlines():
        event_id, at_ns = line.split()
        received.setdefault(event_id, int(at_ns))
    return received


def _lags(times: Times, received: dict[str, int]) -> tuple[str, str]:
    lags_ms = [
        (received[orjson.loads(body)["id"]] - sent_ns) / 1e6 for body, (sent_ns, _) in times.items()
    ]
    return f"{median(lags_ms):.1f} ms", f"{quantiles(lags_ms, n=100)[98]:.1f} ms"


def _count(port: int) -> int:
    return int(httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).text)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not done within {DEADLINE_S:.0f} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
