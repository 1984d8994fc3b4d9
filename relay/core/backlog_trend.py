"""Inflow, outflow and expected end of a sink's backlog, from samples of the last minutes.

Only the relay that owns the sink computes them, so that all relays, pages and metrics agree.

The inflow is computed: it is the outflow plus the growth of the backlog, so that an acknowledgement
counts nothing. A relay does not count the deliveries that another one discards; where the backlog
shrinks by more than the counted outflow, the difference belongs to the outflow.

What has to wait is no growth: retries that are not due, and what a sink gathers on purpose, which
goes out all at once. All that is measured of such a sink is measured over two of its gatherings.
"""

import math
from collections import deque
from itertools import islice
from typing import NamedTuple

from relay.core.sink_status import Direction, Flow

SAMPLE_EVERY_S = 5.0
GAP_S = 60.0
"""A longer time without a sample says nothing of what happened in it: all begins anew."""

KNOWN_AFTER_S = 60.0
RATE_S = 300.0
"""Time over which the rates are measured, or since the first sample if that is less.

Growth counts once it has lasted twice as long, in the first and in the second half of it.
"""

GATHERINGS = 2
"""Gatherings in the time over which the rates of a sink that gathers are measured.

With a single one, the rates would double whenever the end of a second one slips in.
"""

GROWTH_MIN = 10
"""Smallest growth of a half that counts, in deliveries."""

CHANCE = 2.0
"""Standard deviations of the arrivals that are put down to chance, taken as a Poisson process."""

LEAVES_BELOW = 0.9
"""Share of `give_up_after` below which a backlog no longer takes too long."""


class Sample(NamedTuple):
    """A backlog at one moment."""

    at_s: float
    """By a clock that never goes back."""
    at_ms: int
    """The same moment, in milliseconds since the epoch."""
    pending: int
    ended: int
    """Deliveries that have ended, from any start on."""
    retrying: int = 0

    @property
    def due(self) -> int:
        return max(0, self.pending - self.retrying)


class BacklogTrend:
    """The flow of one sink's backlog, from samples about a second apart or a few."""

    def __init__(self, *, gathers_for_s: float = 0.0) -> None:
        """`gathers_for_s` is how long the sink lets events wait for each other on purpose."""
        gatherings_s = GATHERINGS * gathers_for_s
        self._known_after_s = max(KNOWN_AFTER_S, gatherings_s)
        self._rate_s = max(RATE_S, gatherings_s)
        self._growth_s = 2 * self._rate_s
        self.flow: Flow | None = None
        """None until a minute was seen, or two gatherings."""
        self._samples: deque[Sample] = deque()
        """Those of the last `_growth_s`, and the one before, oldest first."""
        self._active_s: float | None = None
        """The first sample since the sink works; growth while it does not has another cause."""
        self._growing_since_ms: int | None = None
        self._too_long_since_ms: int | None = None

    def add(self, sample: Sample, *, is_active: bool, give_up_after_s: float) -> None:
        """Take a sample; cheap, because one that follows another too soon changes nothing."""
        if not is_active:
            self._active_s = None
        elif self._active_s is None:
            self._active_s = sample.at_s
        if self._samples:
            gap_s = sample.at_s - self._samples[-1].at_s
            if gap_s < SAMPLE_EVERY_S:
                return
            if gap_s > GAP_S:
                self._samples.clear()
                self._active_s = sample.at_s if is_active else None
        self._samples.append(sample)
        while len(self._samples) > 1 and sample.at_s - self._samples[1].at_s >= self._growth_s:
            self._samples.popleft()
        self.flow = self._measured(give_up_after_s)

    def _measured(self, give_up_after_s: float) -> Flow | None:
        middle = self._middle()
        before, now = self._samples[middle], self._samples[-1]
        seconds = now.at_s - before.at_s
        if seconds < self._known_after_s:
            self._growing_since_ms = self._too_long_since_ms = None
            return None
        came, went = _moved(before, now)
        direction = _direction(came, went)
        due = now.due
        wait_s = None if due and not went else due / went * seconds if due else 0.0
        self._judge_growth(middle)
        self._judge_length(wait_s, give_up_after_s)
        return Flow(
            in_per_minute=round(came / seconds * 60, 1),
            out_per_minute=round(went / seconds * 60, 1),
            direction=direction,
            retrying=now.retrying,
            wait_s=_rounded(wait_s),
            end_s=_rounded(_end_s(direction, due, came / seconds, went / seconds, wait_s)),
            growing_since_ms=self._growing_since_ms,
            too_long_since_ms=self._too_long_since_ms,
        )

    def _middle(self) -> int:
        """Return the index of the newest sample that is as old as `_rate_s`, else of the first."""
        now_s = self._samples[-1].at_s
        index = 0
        for number, sample in enumerate(islice(self._samples, 1, None), 1):
            if now_s - sample.at_s < self._rate_s:
                break
            index = number
        return index

    def _judge_growth(self, middle: int) -> None:
        """Growth begins once both halves have grown, and ends once the backlog shrinks again.

        The lowest points must rise, because a burst that is worked off is no growth. It ends once
        the lowest or the highest points fall, because a series of bursts is a single growth.
        """
        first, half, now = self._samples[0], self._samples[middle], self._samples[-1]
        if self._active_s is None or first.at_s < self._active_s:
            self._growing_since_ms = None
            return
        levels = [sample.due for sample in self._samples]
        earlier, later = levels[: middle + 1], levels[middle:]
        came = _moved(first, half)[0]
        if self._growing_since_ms is not None:
            has_turned = _is_rise(came, max(earlier) - max(later))
            if has_turned or min(later) < min(earlier):
                self._growing_since_ms = None
        elif now.at_s - first.at_s >= self._growth_s:
            rises = (half.due - first.due, min(later) - min(earlier))
            is_growing = _is_rise(_moved(half, now)[0], now.due - half.due)
            if is_growing and all(_is_rise(came, rise) for rise in rises):
                self._growing_since_ms = first.at_ms

    def _judge_length(self, wait_s: float | None, limit_s: float) -> None:
        if self._active_s is None:
            self._too_long_since_ms = None
        elif wait_s is None:
            # Nothing went out lately: that tells neither that it is too long, nor that it is not.
            return
        elif self._too_long_since_ms is None:
            if wait_s > limit_s:
                self._too_long_since_ms = self._samples[-1].at_ms
        elif wait_s < LEAVES_BELOW * limit_s:
            self._too_long_since_ms = None


def _moved(before: Sample, after: Sample) -> tuple[int, int]:
    """Return how many deliveries came and went between two samples."""
    went = after.ended - before.ended
    change = after.pending - before.pending
    came = max(0, went + change)
    return came, came - change


def _chance(came: int) -> float:
    return CHANCE * math.sqrt(came)


def _is_rise(came: int, rise: int) -> bool:
    """Whether a rise is larger than chance explains, given the number of arrivals."""
    return rise >= max(GROWTH_MIN, _chance(came))


def _direction(came: int, went: int) -> Direction:
    if _is_rise(came, came - went):
        return "growing"
    return "draining" if went - came > _chance(came) else "steady"


def _end_s(
    direction: Direction, due: int, in_per_s: float, out_per_s: float, wait_s: float | None
) -> float | None:
    """Return the time until nothing is due."""
    if direction == "draining":
        return due / (out_per_s - in_per_s)
    if direction == "growing" or wait_s is None:
        return None
    # A steady queue that turns over within a minute is no backlog.
    return wait_s if wait_s <= 60 else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
