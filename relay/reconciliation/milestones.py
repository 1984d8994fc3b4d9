"""Which milestones a person reached in a period without an event of them, and which are unsure.

A milestone is reached once the parts seen in all views together make up that much of the video.
The views' own percentages bound that: at least the largest of them, at most their sum. Where the
bounds leave a doubt, the person's own answer of the API, which joins all views, settles it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from relay.core.event import MILESTONES, THRESHOLDS
from relay.reconciliation.period import Period
from relay.reconciliation.reasons import Reason
from relay.reconciliation.views import FULL, ViewingHistory, Views
from relay.video_service.api.records import Watched

STARTED, COMPLETED = MILESTONES[0], MILESTONES[-1]
LEVELS = {name: level for name, level in THRESHOLDS.items() if name != STARTED}
"""Milestones that are reached by watching."""

_EPSILON = 1e-6
"""For sums of percentages that are meant to be whole."""


class Milestone(NamedTuple):
    """A milestone that was reached in the period; by `at_ms` at the latest."""

    name: str
    at_ms: int


class MilestoneDecision(msgspec.Struct):
    """The milestones to reconstruct for one person and one video, and what stays unknown."""

    reached: list[Milestone] = msgspec.field(default_factory=list)
    unsure: list[Reason] = msgspec.field(default_factory=list)
    left: list[Reason] = msgspec.field(default_factory=list)
    """What the next run may find."""
    in_doubt: bool = False
    """Only the person's own answer of the API can tell; all else is void."""


class KnownMilestones(msgspec.Struct, frozen=True, kw_only=True):
    """What else is known of one person's views of one video."""

    steps: Mapping[str, int]
    """Milestones of stored events, with their times."""
    since_ms: int | None
    """From when on the store knows all that was sent; None if it knows nothing."""
    is_whole: bool
    """Whether all views of the source were read, from its first one."""
    is_asked: bool = False
    """Whether the API was asked about the person."""
    watched: Watched | None = None
    """What it answered about the video, if anything."""


def derive(history: ViewingHistory, known: KnownMilestones, period: Period) -> MilestoneDecision:
    """Decide on every milestone of one person and video."""
    return _Derivation(history, known, period).decide()


class _Derivation:
    def __init__(self, history: ViewingHistory, known: KnownMilestones, period: Period) -> None:
        self._history = history
        self._known = known
        self._period = period
        self._result = MilestoneDecision()
        self._reached_before = max(
            (_level(name) for name, at_ms in known.steps.items() if at_ms < period.since_ms),
            default=-1.0,
        )
        self._low, self._high = self._bounds()

    def decide(self) -> MilestoneDecision:
        self._start()
        for name, level in LEVELS.items():
            if name not in self._known.steps:
                self._milestone(name, level)
        if self._result.in_doubt and not self._known.is_asked:
            return MilestoneDecision(in_doubt=True)
        return self._result

    def _start(self) -> None:
        at_ms, is_older = self._history.first_within_ms, self._reached_before >= 0
        if is_older or STARTED in self._known.steps or self._history.before.count:
            return
        if at_ms is None:
            self._start_named_later()
            return
        if not self._known.is_whole:
            first_ms = self._first_asked_ms()
            if first_ms is None:
                self._result.unsure.append("older")
                return
            if first_ms < self._period.since_ms:
                return
        self._result.reached.append(Milestone(STARTED, at_ms))

    def _start_named_later(self) -> None:
        """Decide on views that began before the period, and may have been anonymous until then.

        Their milestones are sent once a form names the viewer.
        """
        within = self._history.within
        if not within.count:
            return
        if within.first_ms >= (self._known.since_ms or self._period.since_ms):
            self._result.reached.append(Milestone(STARTED, within.first_ms))
        else:
            self._result.unsure.append("older")

    def _milestone(self, name: str, level: float) -> None:
        if not self._history.within.count:
            # No view of the period is over; one that goes on is left to the next run.
            if self._history.open and self._history.first_within_ms is not None:
                self._leave()
            return
        before = self._history.before
        low_before = max(before.low, LEVELS[COMPLETED] if before.has_finished else 0.0)
        if self._reached_before >= level or low_before + _EPSILON >= level:
            return
        if self._is_reached(name, level) and self._is_of_period(name, level):
            self._result.reached.append(Milestone(name, self._moment(level)))

    def _is_reached(self, name: str, level: float) -> bool:
        """Whether it was reached by the horizon, as far as that is known."""
        if self._low + _EPSILON >= level:
            return True
        if self._high + _EPSILON < level or self._is_unfinished(name):
            if self._history.open:
                self._leave()
            return False
        if not self._known.is_asked:
            self._result.in_doubt = True
            return False
        percent = _percent(self._known.watched)
        if percent is None:
            self._result.unsure.append("no_percent")
            return False
        if percent + _EPSILON < level:
            return False
        last_ms = self._known.watched.last_ms if self._known.watched else None
        if self._history.open or (last_ms or 0) >= self._period.horizon_ms:
            self._leave()
            return False
        return True

    def _is_of_period(self, name: str, level: float) -> bool:
        """Whether a milestone that was reached was not reached before the period."""
        before, period = self._history.before, self._period
        if name == COMPLETED and before.last_finished is False:
            return True
        first_ms = before.first_ms if before.count else None
        high = before.high
        if not self._known.is_whole:
            first_ms = self._first_asked_ms()
            if self._result.in_doubt:
                return False
            high = FULL if first_ms is None or first_ms < period.since_ms else 0.0
        if high + _EPSILON < level:
            return True
        if first_ms is not None and first_ms >= (self._known.since_ms or period.since_ms):
            # The store would know of it, so it was lost.
            return True
        self._result.unsure.append("older")
        return False

    def _first_asked_ms(self) -> int | None:
        """Return the start of the person's first view, which only the API can tell."""
        if not self._known.is_asked:
            self._result.in_doubt = True
        return None if self._known.watched is None else self._known.watched.first_ms

    def _bounds(self) -> tuple[float, float]:
        """Return the least and the greatest part that was seen by the horizon."""
        parts: Sequence[Views] = (self._history.before, self._history.within)
        low = max(part.low for part in parts)
        if any(part.has_finished for part in parts):
            low = max(low, LEVELS[COMPLETED])
        known = self._known.steps.items()
        in_time = (_level(name) for name, at_ms in known if at_ms < self._period.horizon_ms)
        low = max(low, max(in_time, default=0.0))
        high = min(FULL, sum(part.high for part in parts)) if self._known.is_whole else FULL
        return low, high

    def _is_unfinished(self, name: str) -> bool:
        last = max((self._history.before, self._history.within), key=lambda part: part.last_ms)
        return name == COMPLETED and last.last_finished is False

    def _moment(self, level: float) -> int:
        """Return the end of the first view by which it was reached, or of the last view."""
        ends = sorted(self._history.ends)
        certain = (end.ended_ms for end in ends if end.low + _EPSILON >= level)
        return next(certain, ends[-1].ended_ms)

    def _leave(self) -> None:
        if "view_open" not in self._result.left:
            self._result.left.append("view_open")


def _level(step: str) -> float:
    """Return the part of the video that a known step implies; -1 for a lead."""
    return 0.0 if step == STARTED else LEVELS.get(step, -1.0)


def _percent(watched: Watched | None) -> float | None:
    if watched is None:
        return None
    if watched.finished:
        return max(watched.percent or 0.0, LEVELS[COMPLETED])
    return watched.percent
