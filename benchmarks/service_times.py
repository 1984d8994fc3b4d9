"""Service times of one relay on each engine, for `benchmarks.model`.

`python -m benchmarks.service_times [--seconds S] [--backlog N] > benchmarks/service_times.toml`
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

from benchmarks import acknowledge, backlog, load, requests, rig
from benchmarks.model import Engine, Share
from benchmarks.postgres import server
from relay.store.postgres.settings import PostgresSettings
from tests.ports import free_port

_RATE = 500
_DRAINED_S = 600.0
_COMMITS = "relay_store_commit_seconds"


class _Cost(NamedTuple):
    """What some events or deliveries have cost, in milliseconds for each."""

    relay_ms: float
    database_ms: float
    commit_ms: float
    per_commit: float
    processors: float
    """Processors that the relay used meanwhile."""


class _Bench(NamedTuple):
    """A new store for each measurement, and the database's processor time so far."""

    store: Callable[[], AbstractContextManager[PostgresSettings | None]]
    database_s: Callable[[], float]
    seconds: int
    events: int

    @contextmanager
    def relay(self, *sinks: int) -> Iterator[tuple[rig.Relay, Path]]:
        """Yield a relay that does not run yet, and its folder."""
        with self.store() as store, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            yield rig.Relay(folder, [rig.http_sink(port) for port in sinks], store), folder

    def measure(self, running: rig.Running, work: Callable[[], float]) -> _Cost:
        """Measure work that returns how many items it has done."""
        before, began = self._read(running), time.monotonic()
        done = work()
        took_s = time.monotonic() - began
        spent = [now - then for now, then in zip(self._read(running), before, strict=True)]
        relay_s, database_s, commit_s, commits = spent
        return _Cost(
            relay_ms=1000 * relay_s / done,
            database_ms=1000 * database_s / done,
            commit_ms=1000 * commit_s / commits,
            per_commit=done / commits,
            processors=relay_s / took_s,
        )

    def _read(self, running: rig.Running) -> list[float]:
        commits = (running.metric(f"{_COMMITS}_{each}") for each in ("sum", "count"))
        return [running.processor_s(), self.database_s(), *commits]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service_times")
    parser.add_argument("--seconds", type=int, default=6, help="of each load")
    parser.add_argument("--backlog", type=int, default=30_000, help="to drain")
    given = parser.parse_args()
    sqlite = _Bench(nullcontext, lambda: 0.0, given.seconds, given.backlog)
    print("# Milliseconds; written by benchmarks/service_times.py, read by benchmarks/model.py.")
    print(f'machine = "{time.strftime("%Y-%m-%d")}: {rig.machine()}"')
    print(f"carried = {_carried(sqlite):.0f}")
    _print("sqlite", _engine(sqlite))
    with server.running() as database:
        postgres = sqlite._replace(store=database.schema, database_s=database.processor_s)
        _print("postgres", _engine(postgres))


def _print(name: str, engine: Engine) -> None:
    print(f"\n[{name}]")
    for key, value in msgspec.structs.asdict(engine).items():
        if isinstance(value, Share):
            print(f"{key} = {{ item = {value.item:.4f}, transaction = {value.transaction:.4f} }}")
        else:
            print(f"{key} = {value:.2f}")


def _engine(bench: _Bench) -> Engine:
    calm, flood = _calm(bench), _flood(bench)
    delivered, drained = _delivered(bench), _drained(bench)
    alone = calm.per_commit

    def of_acceptance(name: str) -> Share:
        few, many = getattr(calm, name), getattr(flood, name)
        return Share.between((alone, few), (flood.per_commit, many))

    def of_delivery(name: str) -> Share:
        few = getattr(delivered, name) - getattr(calm, name)
        return Share.between((alone, few), (drained.per_commit, getattr(drained, name)))

    return Engine(
        accept=of_acceptance("relay_ms"),
        deliver=of_delivery("relay_ms"),
        commit=Share.between(
            *((each.per_commit, each.commit_ms / each.per_commit) for each in (calm, flood))
        ),
        database_accept=of_acceptance("database_ms"),
        database_deliver=of_delivery("database_ms"),
        processors=flood.processors,
    )


def _paced(relay: rig.Relay, seconds: float) -> float:
    return len(uvloop.run(load.paced(relay.listen, rate=_RATE, seconds=seconds)))


def _calm(bench: _Bench) -> _Cost:
    """Measure acceptance alone, at a rate at which events share no transaction."""
    with bench.relay() as (relay, _), relay.running() as running:
        _paced(relay, 1)
        return bench.measure(running, partial(_paced, relay, bench.seconds))


def _flood(bench: _Bench) -> _Cost:
    """Measure acceptance alone, with full transactions."""
    with bench.relay() as (relay, folder), relay.running() as running:
        file = acknowledge.written(folder, bench.seconds)

        def work() -> float:
            return load.flood(relay.listen, file, seconds=bench.seconds) * bench.seconds

        return bench.measure(running, work)


def _delivered(bench: _Bench) -> _Cost:
    """Measure acceptance and delivery at the same rate as `_calm`."""
    port = free_port()
    with rig.destination("sink", port), bench.relay(port) as (relay, _), relay.running() as running:
        warm = _paced(relay, 1)
        _wait_for(port, warm)

        def work() -> float:
            sent = _paced(relay, bench.seconds)
            _wait_for(port, warm + sent)
            return sent

        return bench.measure(running, work)


def _drained(bench: _Bench) -> _Cost:
    """Measure deliveries alone, from a backlog."""
    port = free_port()
    with bench.relay(port) as (relay, _):
        bodies = requests.bodies(bench.events)
        uvloop.run(backlog.fill(relay.store, f"sink{port}", bodies))
        with rig.destination("sink", port), relay.running() as running:

            def work() -> float:
                first = rig.received(port)
                _wait_for(port, bench.events)
                return bench.events - first

            return bench.measure(running, work)


def _carried(bench: _Bench) -> float:
    """Return the rate at which a flood is accepted and delivered, its backlog included."""
    port = free_port()
    with (
        rig.destination("sink", port),
        bench.relay(port) as (relay, folder),
        relay.running() as running,
    ):
        file = acknowledge.written(folder, bench.seconds)
        began = time.monotonic()
        load.flood(relay.listen, file, seconds=bench.seconds)
        accepted = running.metric("relay_events_total{")
        _wait_for(port, accepted)
        return accepted / (time.monotonic() - began)


def _wait_for(port: int, count: float) -> None:
    rig.until(lambda: rig.received(port) >= count, seconds=_DRAINED_S)


if __name__ == "__main__":
    main()
