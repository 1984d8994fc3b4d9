"""How fast events are acknowledged, against a bare endpoint under the same load.

`python -m benchmarks.acknowledge [ROUNDS]`
"""

import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

import uvloop

from benchmarks import load, requests, rig

SECONDS = 6
REQUESTS = 30_000 * SECONDS
"""More than the relay can take, so that no event is sent twice; the bare endpoint may go round."""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[str, list[float]] = {"bare": [], "down": [], "alive": []}
    for _ in range(rounds):
        for name, measure in (("bare", _bare), ("down", _down), ("alive", _alive)):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(measure(Path(folder)))
    rates = {name: median(values) for name, values in found.items()}
    ratios = {
        name: median(each / bare for each, bare in zip(values, found["bare"], strict=True))
        for name, values in found.items()
    }
    print(rig.machine())
    rig.table(
        [
            ("acknowledged, 64 connections, 400-byte bodies", "per second", "ratio"),
            ("bare Starlette endpoint, 204", f"{rates['bare']:.0f}", "1.00"),
            ("relay, two sinks down", f"{rates['down']:.0f}", f"{ratios['down']:.2f}"),
            ("relay, two sinks alive", f"{rates['alive']:.0f}", f"{ratios['alive']:.2f}"),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        half = rates["down"] / 2
        p50, p99 = _latency(Path(folder), half)
    print(f"at {half:.0f} per second: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def _file(folder: Path) -> Path:
    file = folder / "requests"
    requests.write(file, REQUESTS)
    return file


def _bare(folder: Path) -> float:
    port = rig.free_port()
    with rig.far_end("bare", port):
        return load.flood(port, _file(folder), seconds=SECONDS)


def _down(folder: Path) -> float:
    return _flood(_relay(folder, rig.free_port(), rig.free_port()), folder)


def _alive(folder: Path) -> float:
    one, other = rig.free_port(), rig.free_port()
    with rig.far_end("sink", one), rig.far_end("sink", other):
        return _flood(_relay(folder, one, other), folder)


def _relay(folder: Path, *ports: int) -> rig.Relay:
    return rig.Relay(folder, [rig.http_sink(port) for port in ports])


def _flood(relay: rig.Relay, folder: Path) -> float:
    with relay.running() as running:
        rate = load.flood(relay.listen, _file(folder), seconds=SECONDS)
        if running.metric('relay_requests_total{code="200"'):
            sys.exit("the file of requests was too short: some events came twice")
        return rate


def _latency(folder: Path, rate: float) -> tuple[float, float]:
    relay = _relay(folder, rig.free_port(), rig.free_port())
    with relay.running():
        times = uvloop.run(load.paced(relay.listen, rate=rate, seconds=SECONDS))
    waits_ms = [(answered - due) / 1e6 for due, answered in times.values()]
    return median(waits_ms), quantiles(waits_ms, n=100)[98]


if __name__ == "__main__":
    main()
