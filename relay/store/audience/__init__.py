"""Questions about the audience, their answers, and the columns of these in tables."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Literal

import msgspec

Grouping = Literal["video", "day", "hour", "source"]


class AudienceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of views and leads, and their grouping."""

    by: Grouping
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    source: str | None = None
    video: str | None = None
    zone: tzinfo = UTC
    """Time zone of the days and hours."""
    limit: int = 1000
    """Maximum number of groups."""


class StepCount(msgspec.Struct, frozen=True):
    """Counts of one step, within a group and the selected time."""

    kind: str
    """Kind of the events that report the step."""
    milestone: str | None
    """None for leads."""
    people: int
    """Distinct people with an e-mail address."""
    events: int
    anonymous: int
    """Events without an address, which do not count as people."""


class Group(msgspec.Struct, frozen=True):
    """One video, day, hour or source with its funnel; the other fields are None."""

    steps: Sequence[StepCount]
    """All steps, in their order."""
    video: str | None = None
    """None also for events without a video."""
    title: str | None = None
    """The latest title."""
    day: str | None = None
    """As `2026-11-02`, in the requested zone."""
    hour: int | None = None
    """Hour of the day by the clocks of the requested zone, 0 to 23, over all selected days."""
    source: str | None = None


class Funnel(msgspec.Struct, frozen=True, kw_only=True):
    """The counted groups: videos and sources with the most people first, days newest first.

    All 24 hours in their order, unless nothing is selected.
    """

    groups: Sequence[Group]
    total: Sequence[StepCount]
    """Counts over all groups, with each person once, so not the sum of the groups."""
    left_out: int
    """Number of groups beyond the limit; for days 1 means one or more."""
    counted_until_ms: int | None
    """Later events may not be counted yet; None if all are."""


KEYS: Mapping[Grouping, Sequence[str]] = {
    "video": ("title", "video"),
    "day": ("day",),
    "hour": ("hour",),
    "source": ("source",),
}
"""The fields of a group that name it."""

STEPS = ("started", "25%", "50%", "75%", "completed", "leads")
"""People by step, once each."""

FORMS = "forms"
"""Events of the last step: one person can send several."""

_EVENTS = (*(f"{step} events" for step in STEPS[:-1]), FORMS)


def csv_rows(by: Grouping, funnel: Funnel, shown: Callable[[str], str]) -> list[Sequence[object]]:
    """Return the rows of a CSV file, the names first; `shown` treats texts of senders."""
    rows: list[Sequence[object]] = [(*KEYS[by], *STEPS, *_EVENTS)]
    for group in funnel.groups:
        keys = (getattr(group, name) for name in KEYS[by])
        rows.append(
            (
                *("" if key is None else shown(str(key)) for key in keys),
                *(step.people for step in group.steps),
                *(step.events for step in group.steps),
            )
        )
    return rows
