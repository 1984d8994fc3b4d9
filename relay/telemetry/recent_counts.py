"""The last hour by minute, and the speed of acknowledgements, from samples of the metrics.

The metrics only grow, so the difference of two samples is what happened between them: requests and
deliveries do no work for it. Only the last second of a source or sink that a reload removes is left
out. The store counts some 700,000 rows a second, and a busy hour has 25 times as many events; so it
is asked only once, for the time before the start.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relay.core.clock import Clock
from relay.core.minutes import Minute, minute_of, starts
from relay.core.sink_status import ThroughputWindow
from relay.telemetry.metrics import Counts, Metrics
from relay.telemetry.metrics.labels import ACK_BOUNDS

SAMPLE_EVERY_S = 1.0
"""An event may be counted this much later than it was received, so in the next minute."""

KEPT_MS = 3_600_000

SPEED_S = 300.0
"""Time over which the durations of acknowledgements are summed up."""


class AcknowledgementRate(msgspec.Struct, frozen=True, kw_only=True):
    """New events and the durations of their acknowledgements, in this process."""

    last_minute: int
    """New events in the last minute."""
    median_s: float | None
    """Median of the last minutes, estimated from the histogram; None without requests."""
    p99_s: float | None
    """The 99th percentile, likewise."""


class RecentCounts:
    """Takes samples of the metrics; not thread-safe."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.started_ms = clock.now_ms()
        self._from_ms = minute_of(self.started_ms)
        self._minutes: dict[int, Minute] = {}
        self._last = metrics.counts()
        self._accepted = ThroughputWindow()
        self._acks: deque[tuple[float, Sequence[float]]] = deque()
        """Times of samples and their new acknowledgements by bucket, oldest first."""

    def restore(self, minutes: Iterable[Minute]) -> None:
        """Add the stored counts from before `started_ms`."""
        for each in minutes:
            since = self._minutes.get(each.at_ms, Minute(each.at_ms))
            self._minutes[each.at_ms] = Minute(
                each.at_ms,
                _plus(each.accepted, since.accepted or 0),
                _plus(each.delivered, since.delivered or 0),
                _plus(each.failed, since.failed or 0),
            )
            self._from_ms = min(self._from_ms, each.at_ms)

    def sample(self) -> None:
        """Count what has happened since the last sample."""
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        counts, last = self._metrics.counts(), self._last
        self._last = counts
        accepted = _increase(last.accepted, counts.accepted)
        self._accepted.add(accepted, now_s)
        self._add(
            now_ms,
            accepted=accepted,
            delivered=_increase(last.delivered, counts.delivered),
            failed=_increase(last.failed, counts.failed),
        )
        self._add_acks(_new_acks(last, counts), now_s)

    def minutes(self, since_ms: int, until_ms: int) -> list[Minute] | None:
        """Return the minutes of a time; None if it begins before what is kept."""
        self.sample()
        if minute_of(since_ms) < max(self._from_ms, minute_of(self._clock.now_ms()) - KEPT_MS):
            return None
        empty = Minute(0)
        return [
            Minute(at_ms, each.accepted, each.delivered, each.failed)
            for at_ms in starts(since_ms, until_ms)
            for each in (self._minutes.get(at_ms, empty),)
        ]

    def rate(self) -> AcknowledgementRate:
        """Return the rate and the durations of now."""
        self.sample()
        acks = [sum(column) for column in zip(*(each for _, each in self._acks), strict=True)]
        return AcknowledgementRate(
            last_minute=self._accepted.last_minute(self._clock.monotonic()),
            median_s=_quantile(acks, 0.5),
            p99_s=_quantile(acks, 0.99),
        )

    def _add(self, now_ms: int, *, accepted: int, delivered: int, failed: int) -> None:
        at_ms = minute_of(now_ms)
        before = self._minutes.get(at_ms, Minute(at_ms))
        self._minutes[at_ms] = Minute(
            at_ms,
            _plus(before.accepted, accepted),
            _plus(before.delivered, delivered),
            _plus(before.failed, failed),
        )
        for old in [each for each in self._minutes if each < at_ms - KEPT_MS]:
            del self._minutes[old]

    def _add_acks(self, acks: Sequence[float], now_s: float) -> None:
        if self._acks and int(self._acks[-1][0]) == int(now_s):
            # However often somebody asks, there is one entry per second.
            at_s, before = self._acks.pop()
            self._acks.append((at_s, [sum(both) for both in zip(before, acks, strict=True)]))
        elif any(acks):
            self._acks.append((now_s, acks))
        while self._acks and self._acks[0][0] <= now_s - SPEED_S:
            self._acks.popleft()


def _plus(count: int | None, more: int) -> int | None:
    return None if count is None else count + more


def _increase(before: Mapping[object, float], after: Mapping[object, float]) -> int:
    """Sum up the increases; a series that was removed and created again counts from 0."""
    return round(
        sum(
            value - before.get(key, 0) if value >= before.get(key, 0) else value
            for key, value in after.items()
        )
    )


def _new_acks(before: Counts, after: Counts) -> list[float]:
    """Return the new acknowledgements by bucket, over all sources."""
    new = [0.0] * (len(ACK_BOUNDS) + 1)
    for source, buckets in after.acks.items():
        known = before.acks.get(source, ())
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
