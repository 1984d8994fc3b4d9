"""The tail of acknowledgements at half of the relay's capacity, beside a bare endpoint's.

`python -m benchmarks.tails [--rounds N] [--seconds S] [--rate R]`; without a rate it takes half of
what a flood finds. The relay's own histogram stands beside the load generator's.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import uvloop

from benchmarks import acknowledge, load, rig
from relay.telemetry.metrics.labels import ACK_BOUNDS
from tests.ports import free_port

_WARM_S = 1.0
_HISTOGRAM = "relay_ack_seconds"


class _Run(NamedTuple):
    """Waits that the load generator saw, and the relay's own counts by upper bound in seconds."""

    waits_ms: list[float]
    own: Mapping[float, float]

    def p(self, share: float) -> float:
        return quantiles(self.waits_ms, n=1000)[round(share * 1000) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tails")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--rate", type=float, help="requests per second")
    given = parser.parse_args()
    print(rig.machine())
    rate = given.rate or median(acknowledge.down(3) for _ in range(3)) / 2
    bare, relay = list[_Run](), list[_Run]()
    for _ in range(given.rounds):
        bare.append(_bare(rate, given.seconds))
        relay.append(_relay(rate, given.seconds))
    print(f"at {rate:.0f} per second, {given.rounds} rounds; medians, lowest and highest")
    rig.table(
        [
            ("", "p50 ms", "", "p99 ms", "", "p99.9 ms", ""),
            _row("bare Starlette endpoint on plain uvicorn", bare),
            _row("relay, two sinks down", relay),
            ("ratio within a round", *_ratios(relay, bare)),
        ]
    )
    _print_histograms(bare, relay)


def _bare(rate: float, seconds: float) -> _Run:
    port = free_port()
    with rig.destination("bare", port):
        _paced(port, rate, _WARM_S)
        return _Run(_paced(port, rate, seconds), {})


def _relay(rate: float, seconds: float) -> _Run:
    with tempfile.TemporaryDirectory() as folder:
        relay = rig.Relay(Path(folder), [rig.http_sink(free_port()) for _ in range(2)])
        with relay.running() as running:
            _paced(relay.listen, rate, _WARM_S)
            before = running.histogram(_HISTOGRAM)
            waits_ms = _paced(relay.listen, rate, seconds)
            after = running.histogram(_HISTOGRAM)
    return _Run(waits_ms, {bound: after[bound] - before[bound] for bound in after})


def _paced(port: int, rate: float, seconds: float) -> list[float]:
    times = uvloop.run(load.paced(port, rate=rate, seconds=seconds))
    return [(answered - due) / 1e6 for due, answered in times.values()]


_SHARES = (0.5, 0.99, 0.999)


def _row(name: str, runs: Sequence[_Run]) -> tuple[str, ...]:
    return (name, *chain(*(_spread([run.p(share) for run in runs]) for share in _SHARES)))


def _ratios(runs: Sequence[_Run], bases: Sequence[_Run]) -> tuple[str, ...]:
    pairs = list(zip(runs, bases, strict=True))
    return (*chain(*(_spread([run.p(s) / base.p(s) for run, base in pairs]) for s in _SHARES)),)


def _spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{median(values):.2f}", f"({min(values):.2f} to {max(values):.2f})"


def _print_histograms(bare: Sequence[_Run], relay: Sequence[_Run]) -> None:
    """Print the share of answers within each bound of the relay's own histogram."""
    columns = [_within(runs) for runs in (bare, relay)]
    own = {bound: sum(run.own[bound] for run in relay) for bound in relay[0].own}
    total = max(own.values())
    rows: list[tuple[str, ...]] = [
        ("answered within", "bare endpoint", "relay", "relay, by its own histogram")
    ]
    for bound, one, other in zip(ACK_BOUNDS, *columns, strict=True):
        shares = (one, other, own[bound] / total)
        rows.append((f"{bound * 1000:g} ms", *(f"{share:.3%}" for share in shares)))
        if min(shares) == 1:
            break
    rig.table(rows)
    print(f"the relay's p99 by its own histogram: {quantile(own, 0.99) * 1000:.1f} ms")


def _within(runs: Sequence[_Run]) -> list[float]:
    waits_ms = [wait for run in runs for wait in run.waits_ms]
    return [sum(wait <= bound * 1000 for wait in waits_ms) / len(waits_ms) for bound in ACK_BOUNDS]


def quantile(counts: Mapping[float, float], share: float) -> float:
    """Interpolate within a bucket, as Prometheus does."""
    wanted = share * max(counts.values())
    for (low, below), (high, within) in pairwise([(0.0, 0.0), *sorted(counts.items())]):
        if within >= wanted:
            return low + (high - low) * (wanted - below) / (within - below)
    raise ValueError(f"no bucket reaches {share}")


if __name__ == "__main__":
    main()
