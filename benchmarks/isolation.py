"""What three bad sinks cost the acknowledgement and a good sink, against the good sink alone.

`python -m benchmarks.isolation [ROUNDS]`
"""

import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import httpx
import orjson
import uvloop

from benchmarks import load, rig
from tests.ports import free_port

RATE = 200
SECONDS = 10
WARM_UP_S = 2
SETTLE_S = 30.0


class Party(NamedTuple):
    """The waits of one run, in milliseconds: until the answer, and until the sink's receipt."""

    acknowledged: list[float]
    delivered: list[float]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    alone, beside = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone.append(_alone(Path(folder)))
        with tempfile.TemporaryDirectory() as folder:
            beside.append(_beside(Path(folder)))
    print(rig.machine())
    rig.table(
        [
            (f"{RATE} events per second", "p50", "ratio", "p99", "ratio"),
            *_rows("acknowledged", [each.acknowledged for each in alone], "the good sink alone"),
            *_rows(
                "acknowledged",
                [each.acknowledged for each in beside],
                "three bad sinks beside it",
                against=[each.acknowledged for each in alone],
            ),
            *_rows("delivered", [each.delivered for each in alone], "the good sink alone"),
            *_rows(
                "delivered",
                [each.delivered for each in beside],
                "three bad sinks beside it",
                against=[each.delivered for each in alone],
            ),
        ]
    )


def _alone(folder: Path) -> Party:
    port = free_port()
    return _run(folder, port, rig.Relay(folder, [rig.http_sink(port)]), held={})


def _beside(folder: Path) -> Party:
    port, crawling = free_port(), free_port()
    with _silent() as hanging, _deaf() as refusing, rig.destination("sink", crawling):
        retry = 'retry = { first = "10ms", max = "20ms" }\n'
        sinks = [
            rig.http_sink(port),
            rig.sink("hanging", "http", url=_url(hanging), timeout="60s"),
            rig.sink("refusing", "http", url=_url(refusing)) + retry,
            rig.sink("crawling", "http", url=_url(crawling), rate="1/s"),
        ]
        every = RATE * (WARM_UP_S + SECONDS)
        # The crawling one has had one event a second, and as many at once at the start.
        held = {"hanging": every, "refusing": every, "crawling": every // 2}
        return _run(folder, port, rig.Relay(folder, sinks), held=held)


def _run(folder: Path, port: int, relay: rig.Relay, *, held: dict[str, int]) -> Party:
    """Measure under load; `held` says how many events each bad sink has to lack at the end."""
    notes = folder / "received"
    with rig.destination("sink", port, str(notes)), relay.running() as running:
        uvloop.run(load.paced(relay.listen, rate=RATE, seconds=WARM_UP_S))
        times = uvloop.run(load.paced(relay.listen, rate=RATE, seconds=SECONDS))
        _wait_for_all(port)
        # The gauge is up to a second behind.
        time.sleep(1.5)
        for sink, least in held.items():
            if running.metric(f'relay_pending_deliveries{{sink="{sink}"}}') < least:
                sys.exit(f"the sink {sink} was not as bad as it should be")
    lines = (line.split() for line in notes.read_text(encoding="utf-8").splitlines())
    received = {event_id: int(at_ns) for event_id, at_ns in lines}
    return Party(
        acknowledged=[(answered - due) / 1e6 for due, answered in times.values()],
        delivered=[
            (received[orjson.loads(body)["id"]] - due) / 1e6 for body, (due, _) in times.items()
        ],
    )


def _wait_for_all(port: int) -> None:
    deadline = time.monotonic() + SETTLE_S
    while int(httpx.get(_url(port), trust_env=False).text) < RATE * (WARM_UP_S + SECONDS):
        if time.monotonic() > deadline:
            sys.exit(f"the good sink did not get everything within {SETTLE_S:.0f} s")
        time.sleep(0.05)


def _rows(
    what: str, runs: list[list[float]], beside: str, *, against: list[list[float]] | None = None
) -> list[tuple[str, ...]]:
    """One row: the medians over the runs, and of each run's ratio to the one before it."""
    cells = []
    for fact in (median, _p99):
        found = [fact(run) for run in runs]
        base = [fact(run) for run in against or runs]
        ratio = median(each / other for each, other in zip(found, base, strict=True))
        cells += [f"{median(found):.2f} ms", f"{ratio:.2f}"]
    return [(f"{what}, {beside}", *cells)]


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/hook"


@contextlib.contextmanager
def _silent() -> Iterator[int]:
    """A port on which the kernel accepts connections, and no process responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        yield listening.getsockname()[1]


@contextlib.contextmanager
def _deaf() -> Iterator[int]:
    """A port that is bound but not listened on, so that it refuses every connection."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


if __name__ == "__main__":
    main()
