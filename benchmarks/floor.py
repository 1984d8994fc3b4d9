"""What the relay's libraries and the disk leave of a bare endpoint's speed, without the relay.

`python -m benchmarks.floor [--rounds N] [--seconds S]`; between the two stands an endpoint that
checks the signature and inserts the body, with one fsync for those that wait together.
"""

import argparse
import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median, quantiles

import uvloop

from benchmarks import acknowledge, load, rig
from benchmarks.rounds import Rounds

WARM_S = 1.0
MODERATE = 500.0
"""Requests per second at which processor time is measured."""

BARE = acknowledge.BARE
FLOOR = "signature, one INSERT and its fsync, by aiosqlite"
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
        FLOOR: partial(_flood, given.seconds),
        RELAY: partial(acknowledge.down, given.seconds),
    }
    rates = Rounds.take(floods, given.rounds)
    rates.print("per second", [(FLOOR, BARE), (RELAY, BARE), (RELAY, FLOOR)])
    print(f"processor time of a request at {MODERATE:g} per second")
    _both(partial(_processor_us, given.seconds), given.rounds)
    half = median(rates.found[FLOOR]) / 2
    print(f"p99 at half of what the floor takes, {half:.0f} per second")
    _both(partial(_p99_us, half, given.seconds), given.rounds)


def _both(measure: Callable[[Serving], float], rounds: int) -> None:
    turns = {BARE: partial(measure, _bare), FLOOR: partial(measure, _floor)}
    Rounds.take(turns, rounds).print("us", [(FLOOR, BARE)])


@contextlib.contextmanager
def _bare() -> Iterator[Server]:
    port = rig.free_port()
    with rig.server("benchmarks.destination", ["bare", str(port)], port) as process:
        yield port, process


@contextlib.contextmanager
def _floor() -> Iterator[Server]:
    port = rig.free_port()
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(port), f"{folder}/events.db"]
        with rig.server("benchmarks.floor_endpoint", arguments, port) as process:
            yield port, process


def _flood(seconds: int) -> float:
    with _floor() as (port, _), tempfile.TemporaryDirectory() as folder:
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
