"""Views of videos by person, as known from the sender's list of views."""

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

import msgspec

from relay.core.event import LEAD_CAPTURED, SUBSCRIBABLE, VIDEO_WATCHED, folded
from relay.reconciliation.period import VIEW_MAX_MS, Period
from relay.video_service.api.records import Session, Submission

FULL = 100.0

ROUNDING = 1.0
"""Percentages in answers may have been rounded down by up to this much."""

When = Literal["before", "within", "open"]
"""Before: over before the period. Open: may go on, or may have gone on after the horizon."""


class Views(msgspec.Struct):
    """Some views of one video by one person, added up."""

    count: int = 0
    low: float = 0.0
    """At least this part of the video was seen in them together, 0 to 100."""
    high: float = 0.0
    """At most this part was seen in them together."""
    has_finished: bool = False
    """Whether some view said that the video was finished by its end."""
    last_finished: bool | None = None
    """Whether the view that ended last said so; None if it said nothing."""
    first_ms: int = 0
    last_ms: int = 0

    def add(self, view: Session, *, started_ms: int, ended_ms: int) -> None:
        percent = view.percent
        self.first_ms = min(self.first_ms, started_ms) if self.count else started_ms
        self.low = max(self.low, percent or 0.0)
        self.high = min(FULL, self.high + (FULL if percent is None else percent + ROUNDING))
        self.has_finished = self.has_finished or view.finished is True
        if ended_ms >= self.last_ms:
            self.last_ms, self.last_finished = ended_ms, view.finished
        self.count += 1


class ReachedView(NamedTuple):
    """A view of the period: from its end on, at least this part was seen."""

    ended_ms: int
    low: float


class ViewingHistory(msgspec.Struct):
    """All views of one video by one person of the period."""

    email: str
    name: str | None = None
    title: str | None = None
    before: Views = msgspec.field(default_factory=Views)
    within: Views = msgspec.field(default_factory=Views)
    open: int = 0
    """Views that may go on, or ended after the horizon."""
    first_within_ms: int | None = None
    """Start of the first view that began within the period."""
    ends: list[ReachedView] = msgspec.field(default_factory=list)


class SentForm(NamedTuple):
    """A form that was sent within the period, as a view says it."""

    video: str | None
    title: str | None
    submission: Submission
    at_ms: int
    until_ms: int
    """Later than `at_ms` where only the view's times are known."""


class ViewsRead(msgspec.Struct):
    """What the list of views says, gathered page by page."""

    kinds: Collection[str] = SUBSCRIBABLE
    """Kinds of events that it is gathered for; what the others need is left out."""
    histories: dict[tuple[str, str], ViewingHistory] = msgspec.field(default_factory=dict)
    """By the folded address and the video."""
    forms: list[SentForm] = msgspec.field(default_factory=list)
    views: int = 0
    earlier: int = 0
    """Views that were over before the period."""
    anonymous: int = 0
    """Views of the period without an address."""
    undated: int = 0
    """Views without a begin or without a video."""
    forms_left: list[SentForm] = msgspec.field(default_factory=list)
    """Forms that may still be on their way."""

    def add(self, views: Iterable[Session], period: Period) -> bool:
        """Gather a page; whether every view of it was over before the horizon."""
        settled = True
        for view in views:
            self.views += 1
            settled = self._add(view, period) and settled
        return settled

    def add_earlier(self, views: Iterable[Session], period: Period) -> None:
        """Add what people of the period had watched before it, from a second look at the list."""
        for view in views:
            if view.started_ms is None or view.video_id is None or view.email is None:
                continue
            history = self.histories.get(_key(view.email, view.video_id))
            ended_ms = _end(view, view.started_ms, period)
            if history is None or ended_ms is None or ended_ms >= period.since_ms:
                continue
            history.before.add(view, started_ms=view.started_ms, ended_ms=ended_ms)
            history.name = history.name or view.name
            history.title = history.title or view.title

    def _add(self, view: Session, period: Period) -> bool:
        if view.started_ms is None or view.video_id is None:
            self.undated += 1
            return True
        ended_ms = _end(view, view.started_ms, period)
        if LEAD_CAPTURED in self.kinds:
            self._add_forms(view, period, ended_ms or period.horizon_ms)
        if VIDEO_WATCHED in self.kinds:
            self._add_view(view, view.started_ms, ended_ms, period)
        return _when(view.started_ms, ended_ms, period) != "open"

    def _add_view(
        self, view: Session, started_ms: int, ended_ms: int | None, period: Period
    ) -> None:
        when = _when(started_ms, ended_ms, period)
        if view.email is None or not view.email.strip():
            self.anonymous += when != "before" and started_ms < period.horizon_ms
            return
        if when == "before":
            self.earlier += 1
            return
        history = self._history(view)
        if period.has(started_ms) and history.first_within_ms is None:
            history.first_within_ms = started_ms
        if when == "open":
            history.open += 1
            return
        ended_ms = ended_ms or started_ms
        history.within.add(view, started_ms=started_ms, ended_ms=ended_ms)
        history.ends.append(ReachedView(ended_ms, view.percent or 0.0))

    def _history(self, view: Session) -> ViewingHistory:
        email, video = str(view.email).strip(), str(view.video_id)
        history = self.histories.setdefault(_key(email, video), ViewingHistory(email))
        history.name = view.name or history.name
        history.title = view.title or history.title
        return history

    def _add_forms(self, view: Session, period: Period, ended_ms: int) -> None:
        for submission in view.submitted:
            at_ms = submission.created_ms or view.started_ms or 0
            until_ms = submission.created_ms or ended_ms
            form = SentForm(view.video_id, view.title, submission, at_ms, until_ms)
            if period.has(at_ms):
                self.forms.append(form)
            elif at_ms >= period.horizon_ms:
                self.forms_left.append(form)


def _key(email: str, video: str) -> tuple[str, str]:
    return folded(email.strip()), video


def _end(view: Session, started_ms: int, period: Period) -> int | None:
    """Return the end of a view; None for one that may go on."""
    if view.ended_ms is not None:
        return view.ended_ms
    longest_ms = started_ms + VIEW_MAX_MS
    return longest_ms if longest_ms < period.horizon_ms else None


def _when(started_ms: int, ended_ms: int | None, period: Period) -> When:
    if ended_ms is None or ended_ms >= period.horizon_ms or started_ms >= period.horizon_ms:
        return "open"
    return "before" if ended_ms < period.since_ms else "within"
