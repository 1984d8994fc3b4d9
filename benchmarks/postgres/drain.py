"""Deliveries per second of a backlog into one HTTP sink, on either engine."""

import tempfile
import time
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import backlog, requests, rig
from benchmarks.postgres.server import WAYS, Server
from benchmarks.rounds import Rounds
from relay.store.postgres.settings import PostgresSettings
from tests.ports import free_port


def measure(server: Server, *, rounds: int, events: int) -> None:
    """Take turns, each with a backlog of its own."""
    turns = {"relay on SQLite": partial(_drain, events)}
    for way in WAYS:
        turns[_on(way)] = partial(_drain_postgres, server, way, events)
    found = Rounds.take(turns, rounds)
    print(f"a backlog of {events:,} into one HTTP sink, {rounds} rounds")
    found.print("per second", [(_on(way), "relay on SQLite") for way in WAYS])


def _on(way: str) -> str:
    return f"relay on PostgreSQL, {way}"


def _drain_postgres(server: Server, way: str, events: int) -> float:
    with server.schema(way) as settings:
        return _drain(events, settings)


def _drain(events: int, settings: PostgresSettings | None = None) -> float:
    """Return the rate from the first receipt to the last."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        relay = rig.Relay(Path(folder), [rig.http_sink(port)], settings)
        uvloop.run(backlog.fill(relay.store, f"sink{port}", requests.bodies(events)))
        with rig.destination("sink", port), relay.running():
            rig.until(lambda: rig.received(port) > 0, seconds=90)
            started, first = time.monotonic(), rig.received(port)
            rig.until(lambda: rig.received(port) >= events, seconds=900)
            return (events - first) / (time.monotonic() - started)
