"""Processor time of one event at a moderate rate: accepted, delivered over HTTP and settled.

`python -m benchmarks.processor [--rounds N] [--seconds S] [--rate R]`; all threads of the relay's
process count, and the bare endpoint's process likewise.
"""

import argparse
import tempfile
from pathlib import Path

import uvloop

from benchmarks import load, rig
from benchmarks.rounds import Rounds
from tests.ports import free_port

WARM_S = 2.0
BARE = "bare Starlette endpoint on plain uvicorn"
RELAY = "relay, one HTTP sink"
NO_SINK = "relay, no sink"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--rate", type=float, default=500.0, help="events per second")
    given = parser.parse_args()
    load_of = _Load(given.rate, given.seconds)
    print(rig.machine())
    print(f"processor time of an event at {given.rate:g} per second; medians, lowest and highest")
    turns = {BARE: load_of.bare, NO_SINK: load_of.no_sink, RELAY: load_of.relay}
    Rounds.take(turns, given.rounds).print("us", [(NO_SINK, BARE), (RELAY, BARE)])


class _Load:
    """Measures one process each, in microseconds of processor time per event."""

    def __init__(self, rate: float, seconds: float) -> None:
        self._rate = rate
        self._seconds = seconds

    def bare(self) -> float:
        port = free_port()
        with rig.server("benchmarks.destination", ["bare", str(port)], port) as process:
            self._send(port, WARM_S)
            before_s = rig.processor_s(process.pid)
            events = self._send(port, self._seconds)
            return 1e6 * (rig.processor_s(process.pid) - before_s) / events

    def no_sink(self) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return self._relay(rig.Relay(Path(folder), []))

    def relay(self) -> float:
        port = free_port()
        with tempfile.TemporaryDirectory() as folder, rig.destination("sink", port):
            return self._relay(rig.Relay(Path(folder), [rig.http_sink(port)]))

    def _relay(self, relay: rig.Relay) -> float:
        with relay.running() as running:
            self._send(relay.listen, WARM_S)
            _settled(running)
            before_s = running.processor_s()
            events = self._send(relay.listen, self._seconds)
            took_s = running.processor_s() - before_s
            _settled(running)
        return 1e6 * took_s / events

    def _send(self, port: int, seconds: float) -> int:
        return len(uvloop.run(load.paced(port, rate=self._rate, seconds=seconds)))


def _settled(running: rig.Running) -> None:
    # The gauge is up to a second behind.
    rig.until(lambda: running.metric("relay_pending_deliveries") == 0, seconds=30)


if __name__ == "__main__":
    main()
