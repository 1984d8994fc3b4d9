"""What deliveries keep while acknowledgements are saturated, and how lag grows with the load.

`python -m benchmarks.saturation [floor] [curve] [--rounds N] [--seconds N]`
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import orjson
import uvloop

from benchmarks import deliver, load, requests, rig
from tests.ports import free_port

SINKS = (1, 2, 8)
REQUESTS_PER_SECOND = 15_000
"""More than the relay can take, so that no event is sent twice."""
PLAIN_SHAPES = deliver.PLAIN_SHAPES
STEPS = (10, 20, 30, 40, 50, 60, 80, 100, 120)
"""Offered load, in percent of the capacity."""
BEHIND = 0.05
NOISE_MS = 50.0
"""Lag grows if the backlog at the end of a load is a larger share of it, and waits for longer."""
DRAIN_S = 300.0


def main() -> None:
    parts = {"floor": _floor, "curve": _curve}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saturation")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    parser.add_argument("--rounds", type=int, default=3, help="of the floor")
    parser.add_argument("--seconds", type=int, default=6, help="of each load")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    print(rig.machine())
    for part in given.parts or parts:
        parts[part](given.rounds, given.seconds)


class Floor(NamedTuple):
    """Rates per second of one round."""

    unburdened: float
    """Acknowledgements while the sinks are paused."""
    alone: float
    """Deliveries after them, from the backlog."""
    acknowledged: float
    """Acknowledgements while the sinks are alive, and deliveries meanwhile."""
    delivered: float


def _floor(rounds: int, seconds: int) -> None:
    """Print acknowledgements and deliveries of a saturated relay beside each of them alone."""
    plain = max(deliver.plain(PLAIN_SHAPES).values())
    found: dict[int, list[Floor]] = {sinks: [] for sinks in SINKS}
    for _ in range(rounds):
        for sinks, turns in found.items():
            turns.append(Floor(*_apart(sinks, seconds), *_together(sinks, seconds)))
    rig.table(
        [
            (
                *("sinks", "acks/s, sinks paused", "sinks alive", "ratio"),
                *("delivered/s alone", "meanwhile", "ratio", "of plain httpx"),
            ),
            *(_row(sinks, turns, plain) for sinks, turns in found.items()),
        ]
    )
    print(f"plain httpx, the best of several clients: {plain:.0f} per second")


def _row(sinks: int, turns: list[Floor], plain: float) -> tuple[str, ...]:
    columns = Floor(*(median(column) for column in zip(*turns, strict=True)))
    return (
        str(sinks),
        f"{columns.unburdened:.0f}",
        f"{columns.acknowledged:.0f}",
        _spread([turn.acknowledged / turn.unburdened for turn in turns]),
        f"{columns.alone:.0f}",
        f"{columns.delivered:.0f}",
        _spread([turn.delivered / turn.alone for turn in turns]),
        _spread([turn.delivered / plain for turn in turns]),
    )


def _spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


class _Setup(NamedTuple):
    relay: rig.Relay
    running: rig.Running
    names: list[str]
    port: int
    received: Path
    """Where the destination writes at its end what it has received."""


@contextmanager
def _running(folder: Path, sinks: int) -> Iterator[_Setup]:
    """Run a relay whose sinks share one destination."""
    port, received = free_port(), folder / "received"
    names = [f"sink{number}" for number in range(sinks)]
    url = f"http://127.0.0.1:{port}/hook"
    relay = rig.Relay(folder, [rig.sink(name, "http", url=url) for name in names])
    with rig.destination("sink", port, str(received)), relay.running() as running:
        yield _Setup(relay, running, names, port, received)


def _flood(setup: _Setup, folder: Path, seconds: int) -> float:
    file = folder / "requests"
    requests.write(file, REQUESTS_PER_SECOND * seconds)
    rate = load.flood(setup.relay.listen, file, seconds=seconds)
    assert not setup.running.metric('relay_requests_total{code="200"'), "some events came twice"
    return rate


def _apart(sinks: int, seconds: int) -> tuple[float, float]:
    """Return acknowledgements per second, and then deliveries per second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _running(folder, sinks) as setup:
            for sink in setup.names:
                setup.running.post(f"/sinks/{sink}/pause", {})
            rate = _flood(setup, folder, seconds)
            for sink in setup.names:
                setup.running.post(f"/sinks/{sink}/resume", {})
            backlog = int(rate * seconds) * sinks
            started_ns = time.monotonic_ns()
            ended_ns = started_ns + seconds * 1_000_000_000
            rig.until(
                lambda: time.monotonic_ns() > ended_ns or rig.received(setup.port) >= backlog,
                seconds=2 * seconds,
            )
        times = _receipts(setup.received, started_ns, ended_ns)
        return rate, len(times) * 1e9 / (times[-1] - times[0])


def _together(sinks: int, seconds: int) -> tuple[float, float]:
    """Return acknowledgements per second, and deliveries per second during them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _running(folder, sinks) as setup:
            started_ns = time.monotonic_ns()
            rate = _flood(setup, folder, seconds)
            ended_ns = time.monotonic_ns()
        return rate, len(_receipts(setup.received, started_ns, ended_ns)) / seconds


def _receipts(file: Path, started_ns: int, ended_ns: int) -> list[int]:
    times = (int(line.split()[1]) for line in file.read_text(encoding="utf-8").splitlines())
    return sorted(at_ns for at_ns in times if started_ns <= at_ns <= ended_ns)


class Step(NamedTuple):
    """One offered load."""

    percent: int
    rate: float
    times: dict[bytes, tuple[int, int]]
    """When each event was due and answered, by body."""


def _curve(_: int, seconds: int) -> None:
    """Print acknowledgement, delivery and lag of one sink at a growing load."""
    with tempfile.TemporaryDirectory() as name:
        with _running(Path(name), 1) as setup:
            sent = 0
            steps: list[Step] = []

            def run(percent: int, rate: float, count: float) -> Step:
                nonlocal sent
                times = uvloop.run(load.paced(setup.relay.listen, rate=rate, seconds=count / rate))
                sent += len(times)
                rig.until(lambda: rig.received(setup.port) >= sent, seconds=DRAIN_S)
                return Step(percent, rate, times)

            # All are due at once: the connections are never without a request.
            capacity = _rate(run(0, 1e6, 4_000 * seconds).times)
            for percent in STEPS:
                rate = capacity * percent / 100
                steps.append(run(percent, rate, rate * seconds))
        received = {
            event_id: int(at_ns)
            for event_id, at_ns in map(str.split, setup.received.read_text("utf-8").splitlines())
        }
    print(f"capacity with one sink, by a load of {load.CONNECTIONS} connections: {capacity:.0f}/s")
    rig.table(
        [
            (
                *("offered", "per second", "acks/s", "ack p50", "p99", "delivered/s"),
                *("lag p50", "p99", "at the end", "lag"),
            ),
            *(_lag_row(step, received) for step in steps),
        ]
    )


def _rate(times: dict[bytes, tuple[int, int]]) -> float:
    """Answers per second between the first and the last."""
    answered = [at_ns for _, at_ns in times.values()]
    return len(answered) * 1e9 / (max(answered) - min(answered))


def _lag_row(step: Step, received: dict[str, int]) -> tuple[str, ...]:
    """Lag is from the answer to the destination's receipt."""
    ids = {body: orjson.loads(body)["id"] for body in step.times}
    waits = [(answered - due) / 1e6 for due, answered in step.times.values()]
    by_answer = sorted(
        (answered, received[ids[body]]) for body, (_, answered) in step.times.items()
    )
    lags = [(at - answered) / 1e6 for answered, at in by_answer]
    fifth = len(lags) // 5
    late = median(lags[4 * fifth :])
    first, last = by_answer[0][0], by_answer[-1][0]
    delivered = sum(at <= last for _, at in by_answer)
    is_behind = delivered < (1 - BEHIND) * len(by_answer)
    return (
        f"{step.percent} %",
        f"{step.rate:.0f}",
        f"{_rate(step.times):.0f}",
        f"{median(waits):.1f} ms",
        f"{quantiles(waits, n=100)[98]:.1f} ms",
        f"{delivered * 1e9 / (last - first):.0f}",
        f"{median(lags):.1f} ms",
        f"{quantiles(lags, n=100)[98]:.1f} ms",
        f"{late:.1f} ms",
        "grows" if is_behind and late > NOISE_MS else "bounded",
    )


if __name__ == "__main__":
    main()
