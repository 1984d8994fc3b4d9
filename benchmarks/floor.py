"""What the relay's libraries, the disk and the relay's store each leave of a bare endpoint's speed.

`python -m benchmarks.floor [--rounds N] [--seconds S]`; between bare endpoint and relay stand two
more on plain uvicorn: one checks the signature and inserts the body, with one fsync for those that
wait together; the other has the relay's verification and store.
"""

import argparse
import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import uvloop

from benchmarks import acknowledge, load, rig
from benchmarks.rounds import Rounds
from tests.ports import free_port

WARM_S = 1.0
MODERATE = 500.0
"""Requests per second at which processor time is measured."""

BARE = acknowledge.BARE
FLOOR = "signature, one INSERT and its fsync, by aiosqlite"
STORE = "verification and store of the relay, two deliveries each"
RELAY = acknowledge.DOWN

Server = tuple[int, subprocess.Popen[bytes]]
Serving = Callable[[], contextlib.AbstractContextManager[Server]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each load")
    given = parser.parse_args()
    print(rig.machine())
    print(f"acknowledged, {load.CONNECTIONS} connections")
    floods = {
        BARE: partial(acknowledge.bare, given.seconds),
        FLOOR: partial(_flood, _floor, given.seconds),
        STORE: partial(_flood, _store, given.seconds),
        RELAY: partial(acknowledge.down, given.seconds),
    }
    rates = Rounds.take(floods, given.rounds)
    rates.print("per second", [(FLOOR, BARE), (STORE, BARE), (RELAY, BARE)])
    print(f"processor time of a request at {MODERATE:g} per second")
    _compare(partial(_processor_us, given.seconds), given.rounds, [FLOOR, STORE])
    half = median(rates.found[FLOOR]) / 2
    print(f"p99 at half of what the floor takes, {half:.0f} per second")
    _compare(partial(_p99_us, half, given.seconds), given.rounds, [FLOOR])


def _compare(measure: Callable[[Serving], float], rounds: int, names: Sequence[str]) -> None:
    servers = {BARE: _bare, FLOOR: _floor, STORE: _store}
    turns = {name: partial(measure, servers[name]) for name in (BARE, *names)}
    Rounds.take(turns, rounds).print("us", [(name, BARE) for name in names])


@contextlib.contextmanager
def _bare() -> Iterator[Server]:
    port = free_port()
    with rig.server("benchmarks.destination", ["bare", str(port)], port) as process:
        yield port, process


def _floor() -> contextlib.AbstractContextManager[Server]:
    return _endpoint("benchmarks.floor_endpoint")


def _store() -> contextlib.AbstractContextManager[Server]:
    return _endpoint("benchmarks.store_endpoint")


@contextlib.contextmanager
def _endpoint(module: str) -> Iterator[Server]:
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        rig.server(module, [str(port), f"{folder}/events.db"], port) as process,
    ):
        yield port, process


def _flood(serving: Serving, seconds: int) -> float:
    with serving() as (port, _), tempfile.TemporaryDirectory() as folder:
        return load.flood(port, acknowledge.written(Path(folder), seconds), seconds=seconds)


def _processor_us(seconds: float, serving: Serving) -> float:
    with serving() as (port, process):
        _send(port, MODERATE, WARM_S)
        before_s = rig.processor_s(process.pid)
        requests = len(_send(port, MODERATE, seconds))
        return 1e6 * (rig.processor_s(process.pid) - before_s) / requests


def _p99_us(rate: float, seconds: float, serving: Serving) -> float:
    with serving() as (port, _):
        _send(port, rate, WARM_S)
        return quantiles(_send(port, rate, seconds), n=100)[98]


def _send(port: int, rate: float, seconds: float) -> list[float]:
    """Return how long each request waited for its answer, in microseconds."""
    times = uvloop.run(load.paced(port, rate=rate, seconds=seconds))
    return [(answered - due) / 1e3 for due, answered in times.values()]


if __name__ == "__main__":
    main()
