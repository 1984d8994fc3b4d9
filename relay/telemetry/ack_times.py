"""The speed of acknowledgements in the last minutes, from samples of the metrics.

The metrics only grow, so the difference of two samples is what happened between them, and requests
do no work for it. Only the last second of a source that a reload removes is left out.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from relay.core.clock import Clock
from relay.telemetry.metrics import Metrics
from relay.telemetry.metrics.labels import ACK_BOUNDS

SAMPLE_EVERY_S = 1.0

SPEED_S = 300.0
"""Time over which the durations of acknowledgements are summed up."""

Acks = Mapping[str, Sequence[int]]
"""Acknowledgements by source: one count for each of `ACK_BOUNDS`, then of the slower ones."""


class AckQuantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of acknowledgements, in this process."""

    median_s: float | None
    """Median of the last minutes, estimated from the histogram; None without requests."""
    p99_s: float | None
    """The 99th percentile, likewise."""


class AckTimes:
    """Takes samples of the metrics; not thread-safe."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._last = metrics.acks()
        self._samples: deque[tuple[float, Sequence[float]]] = deque()
        """Times of samples and their new acknowledgements by bucket, oldest first."""

    def sample(self) -> None:
        """Count the acknowledgements since the last sample."""
        last, self._last = self._last, self._metrics.acks()
        acks, now_s = _new(last, self._last), self._clock.monotonic()
        if self._samples and int(self._samples[-1][0]) == int(now_s):
            # However often somebody asks, there is one entry per second.
            at_s, before = self._samples.pop()
            self._samples.append((at_s, [sum(both) for both in zip(before, acks, strict=True)]))
        elif any(acks):
            self._samples.append((now_s, acks))
        while self._samples and self._samples[0][0] <= now_s - SPEED_S:
            self._samples.popleft()

    def quantiles(self) -> AckQuantiles:
        """Return the durations up to now."""
        self.sample()
        acks = [sum(column) for column in zip(*(each for _, each in self._samples), strict=True)]
        return AckQuantiles(median_s=_quantile(acks, 0.5), p99_s=_quantile(acks, 0.99))


def _new(before: Acks, after: Acks) -> list[float]:
    """Return the new acknowledgements by bucket, over all sources."""
    new = [0.0] * (len(ACK_BOUNDS) + 1)
    for source, buckets in after.items():
        known = before.get(source, ())
        if sum(known) > sum(buckets) or not known:
            known = [0] * len(buckets)
        for place, (count, earlier) in enumerate(zip(buckets, known, strict=True)):
            new[place] += count - earlier
    return new


def _quantile(counts: Sequence[float], share: float) -> float | None:
    """Estimate a quantile by interpolation within its bucket, as Prometheus does.

    Above the last bound, it is that bound.
    """
    rank = share * sum(counts)
    if not rank:
        return None
    below, lower = 0.0, 0.0
    for bound, count in zip(ACK_BOUNDS, counts, strict=False):
        if below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return lower
