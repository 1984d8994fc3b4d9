"""How fast a backlog drains into each broker, against its client library in a loop of its own.

`python -m benchmarks.brokers [BACKLOG] [NAME ...]`
"""

import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from benchmarks import backlog, requests, rig
from benchmarks.queue import Broker, Message
from benchmarks.queues import BROKERS
from relay import sinks
from relay.core import config_values
from relay.core.clock import SystemClock
from relay.core.sink import Sink, SinkSettings

DRAINED_S = 600.0
TURNS = 3
"""Of the loops and the relay; the best of each counts, because the machine is not alone."""

_SINK = "queue"


def main() -> None:
    # So that the servers end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    words = sys.argv[1:]
    events = int(words.pop(0)) if words and words[0].isdecimal() else 20_000
    unknown = set(words) - BROKERS.keys()
    if unknown:
        sys.exit(f"not one of {', '.join(BROKERS)}: {', '.join(sorted(unknown))}")
    print(rig.machine())
    rows: list[tuple[str, ...]] = [
        ("confirmed, 400-byte bodies", "in flight", "per second", "ratio")
    ]
    for name in words or BROKERS:
        with tempfile.TemporaryDirectory() as folder:
            broker = BROKERS[name]()
            rows += _rows(broker, Path(folder), min(events, broker.most))
    rig.table(rows)


def _rows(broker: Broker, folder: Path, events: int) -> list[tuple[str, ...]]:
    with ExitStack() as stack:
        try:
            stack.callback(broker.stop)
            broker.start(folder)
        except pytest.skip.Exception as error:
            return [(f"{broker.name}: {error}", "", "", "")]
        turns = [_turn(broker, folder / str(number), events) for number in range(TURNS)]
    in_flight = str(_settings(broker).concurrency)
    rates = {f"{broker.name}, {name}": max(turn[name] for turn in turns) for name in turns[0]}
    best = max(rate for name, rate in rates.items() if "bare" in name)
    return [(name, in_flight, f"{rate:.0f}", f"{rate / best:.2f}") for name, rate in rates.items()]


def _turn(broker: Broker, folder: Path, events: int) -> dict[str, float]:
    """Messages per second of each loop, and of the relay."""
    folder.mkdir()
    bare = {f"bare {name}": rate for name, rate in _bare(broker, events).items()}
    return {**bare, "relay": _drain(broker, folder, events)}


def _bare(broker: Broker, events: int) -> dict[str, float]:
    """Messages per second of each loop."""
    rates = {}
    for name, loop in broker.loops().items():
        broker.empty()
        in_flight = _settings(broker).concurrency
        rates[name] = events / uvloop.run(loop(_messages(broker, events), in_flight))
        _complete(broker, events)
    return rates


def _messages(broker: Broker, events: int) -> Sequence[Message]:
    sink = _sink(broker)
    return [Message(sink.render(backlog.event(body)), body) for body in requests.bodies(events)]


def _drain(broker: Broker, folder: Path, events: int) -> float:
    """Deliveries per second, from the start of the first to the confirm of the last."""
    broker.empty()
    relay = rig.Relay(folder, [rig.sink(_SINK, broker.name, **broker.table())])
    uvloop.run(backlog.fill(relay.store, _SINK, requests.bodies(events)))
    with relay.running() as running:
        _until_delivered(running, events)
    _complete(broker, events)
    with closing(sqlite3.connect(relay.database)) as db:
        query = "SELECT count(*), min(started_at), max(started_at + duration_ms) FROM attempts"
        attempts, first_ms, last_ms = map(int, db.execute(query).fetchone())
    if attempts != events:
        sys.exit(f"{broker.name}: {attempts} attempts at {events} events")
    return events / (last_ms - first_ms) * 1000


def _until_delivered(running: rig.Running, events: int) -> None:
    deadline = time.monotonic() + DRAINED_S
    while running.metric('relay_deliveries_total{outcome="delivered"') < events:
        if time.monotonic() > deadline:
            sys.exit(f"not done within {DRAINED_S:.0f} s")
        # Each look costs the relay some milliseconds; the times come from its store.
        time.sleep(0.5)


def _complete(broker: Broker, events: int) -> None:
    held = broker.held()
    if held != events:
        sys.exit(f"{broker.name}: {held} messages arrived of {events}")


def _settings(broker: Broker) -> SinkSettings:
    table: dict[str, Any] = {"name": _SINK, "type": broker.name, **broker.table()}
    module = sinks.load(broker.name)
    return msgspec.convert(table, module.Settings, dec_hook=config_values.decode)


def _sink(broker: Broker) -> Sink:
    return sinks.load(broker.name).build(_settings(broker), SystemClock())


if __name__ == "__main__":
    main()
