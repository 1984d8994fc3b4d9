"""The relay beside what a team writes in an afternoon: their rates, and their loss under kills.

`python -m benchmarks.afternoon [--rounds N] [--seconds S] [--kills N]`
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from threading import Timer
from typing import NamedTuple, Protocol

import orjson
import uvloop

from benchmarks import acknowledge, load, rig
from benchmarks.rounds import Rounds
from tests.ports import free_port

_RATE = 100
_ALIVE_S = 3.0
_ANSWER_S = 0.2
"""Time until the sink of the kills answers, as one on another continent does."""
_QUIET_S = 5.0
"""Events that have not arrived when the sink has received nothing for this long are lost."""

_AFTERNOON = "afternoon's bridge"
_RELAY = "relay"


class _Process(Protocol):
    def kill(self) -> None: ...


class _System(Protocol):
    listen: int

    def running(self) -> AbstractContextManager[_Process]: ...


class _Bridge:
    """The afternoon's bridge, with its database in a folder."""

    def __init__(self, folder: Path, sink: int) -> None:
        self.listen = free_port()
        url = f"http://127.0.0.1:{sink}/hook"
        self._arguments = [str(self.listen), str(folder / "bridge.db"), url]

    @contextmanager
    def running(self) -> Iterator[_Process]:
        with rig.server("benchmarks.afternoon.app", self._arguments, self.listen) as process:
            yield process


def _relay(folder: Path, sink: int) -> _System:
    return rig.Relay(folder, [rig.http_sink(sink)])


_SYSTEMS: Mapping[str, Callable[[Path, int], _System]] = {_AFTERNOON: _Bridge, _RELAY: _relay}


class _Loss(NamedTuple):
    acknowledged: int
    lost: int
    twice: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.afternoon")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each flood")
    parser.add_argument("--kills", type=int, default=5)
    given = parser.parse_args()
    delivered: dict[str, list[float]] = {name: [] for name in _SYSTEMS}
    turns: dict[str, Callable[[], float]] = {
        acknowledge.BARE: partial(acknowledge.bare, given.seconds)
    }
    for name in _SYSTEMS:
        turns[name] = partial(_flood, name, given.seconds, delivered[name])
    print(rig.machine())
    print(f"acknowledged, {load.CONNECTIONS} connections, one HTTP sink")
    found = Rounds.take(turns, given.rounds)
    found.print("per second", [(name, acknowledge.BARE) for name in _SYSTEMS])
    losses = {name: _killed(name, given.kills) for name in _SYSTEMS}
    print(f"killed {given.kills} times at {_RATE} per second, a sink that takes {_ANSWER_S} s")
    head = ("", "delivered per second, in the flood", "acknowledged", "lost", "delivered twice")
    rows = [(name, f"{median(delivered[name]):.0f}", *map(str, losses[name])) for name in _SYSTEMS]
    rig.table([head, *rows])


def _flood(name: str, seconds: int, delivered: list[float]) -> float:
    port = free_port()
    with rig.destination("sink", port), tempfile.TemporaryDirectory() as folder:
        system = _SYSTEMS[name](Path(folder), port)
        with system.running():
            file = acknowledge.written(Path(folder), seconds)
            rate = load.flood(system.listen, file, seconds=seconds)
            delivered.append(rig.received(port) / seconds)
            return rate


def _killed(name: str, kills: int) -> _Loss:
    """Kill a system under load and start it again; count once it delivers nothing more."""
    acknowledged = set[str]()
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder, port = Path(name_of_folder), free_port()
        notes = folder / "received"
        with rig.destination("sink", port, str(notes), str(_ANSWER_S)):
            system = _SYSTEMS[name](folder, port)
            for _ in range(kills):
                acknowledged |= _until_killed(system)
            with system.running():
                _wait_until_quiet(port)
        lines = notes.read_text(encoding="utf-8").splitlines()
    received = Counter(line.split()[0] for line in lines)
    twice = sum(1 for count in received.values() if count > 1)
    return _Loss(len(acknowledged), len(acknowledged - received.keys()), twice)


def _until_killed(system: _System) -> set[str]:
    """Return the ids that were acknowledged before the kill."""
    with system.running() as process:
        timer = Timer(_ALIVE_S, process.kill)
        timer.start()
        sending = load.paced_until_down(system.listen, rate=_RATE, seconds=2 * _ALIVE_S)
        times, _ = uvloop.run(sending)
        timer.join()
    return {orjson.loads(body)["id"] for body in times}


def _wait_until_quiet(port: int) -> None:
    received, since = -1, time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        now = rig.received(port)
        if now != received:
            received, since = now, time.monotonic()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
