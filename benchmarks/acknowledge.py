"""How fast events are acknowledged, against a bare endpoint under the same load.

`python -m benchmarks.acknowledge [--rounds N] [--seconds S]`
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import load, requests, rig
from benchmarks.rounds import Rounds
from tests.ports import free_port

PER_SECOND = 30_000
"""Requests made for each second, more than the relay can take, so that no event is sent twice.

The bare endpoint may go round.
"""

BARE = "bare Starlette endpoint on plain uvicorn, 204"
DOWN = "relay, two sinks down"
ALIVE = "relay, two sinks alive"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acknowledge")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=6, help="of each flood")
    given = parser.parse_args()
    delivered: list[float] = []
    turns = {
        BARE: partial(bare, given.seconds),
        DOWN: partial(down, given.seconds),
        ALIVE: partial(_alive, given.seconds, delivered),
    }
    print(rig.machine())
    print(f"acknowledged, {load.CONNECTIONS} connections, {requests.BODY_BYTES}-byte bodies")
    Rounds.take(turns, given.rounds).print("per second", [(DOWN, BARE), (ALIVE, BARE)])
    print(f"delivered meanwhile to two sinks together: {median(delivered):.0f} per second")


def bare(seconds: int) -> float:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, rig.destination("bare", port):
        return load.flood(port, written(Path(folder), seconds), seconds=seconds)


def down(seconds: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        relay = rig.Relay(Path(folder), [rig.http_sink(free_port()) for _ in range(2)])
        with relay.running() as running:
            return flood(relay, running, Path(folder), seconds)


def _alive(seconds: int, delivered: list[float]) -> float:
    one, other = free_port(), free_port()
    with (
        rig.destination("sink", one),
        rig.destination("sink", other),
        tempfile.TemporaryDirectory() as name,
    ):
        relay = rig.Relay(Path(name), [rig.http_sink(one), rig.http_sink(other)])
        with relay.running() as running:
            rate = flood(relay, running, Path(name), seconds)
            delivered.append((rig.received(one) + rig.received(other)) / seconds)
            return rate


def flood(relay: rig.Relay, running: rig.Running, folder: Path, seconds: int) -> float:
    """Return acknowledgements per second; fails where an event came twice."""
    rate = load.flood(relay.listen, written(folder, seconds), seconds=seconds)
    if running.metric('relay_requests_total{code="200"'):
        sys.exit("the file of requests was too short: some events came twice")
    return rate


def written(folder: Path, seconds: int) -> Path:
    """Write requests for a flood of this many seconds; their signatures expire in five minutes."""
    file = folder / "requests"
    requests.write(file, PER_SECOND * seconds)
    return file


if __name__ == "__main__":
    main()
