"""The answer to a question about the audience: people by step of the funnel."""

from collections.abc import Mapping, Sequence
from typing import Any

from relay.core.event import LEAD, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED
from relay.store.audience import (
    AudienceQuery,
    Funnel,
    Group,
    Grouping,
    StepCount,
    from_days,
    from_rows,
)
from relay.store.audience.counts import Counts, Steps
from relay.store.audience.reads import AudienceReads
from relay.store.audience.sets import Damaged


def ask(tables: AudienceReads, question: AudienceQuery) -> Funnel | None:
    """Count within the caller's snapshot; None if a stored day is damaged."""
    try:
        counts = from_days.count(tables, question) or from_rows.count(tables, question)
    except Damaged:
        return None
    keys = _ordered(question.by, counts)
    shown = keys[: question.limit]
    names = tables.titles([key for key in shown if key]) if question.by == "video" else {}
    return Funnel(
        groups=[_group(question.by, key, counts, names) for key in shown],
        total=_listed(counts.total),
        left_out=_left_out(question, len(keys)),
        counted_until_ms=tables.oldest_uncounted(),
    )


def _ordered(by: Grouping, counts: Counts) -> list[Any]:
    match by:
        case "video" | "source":
            return counts.ranked()
        case "hour":
            return list(range(24)) if counts.most else []
        case "day":
            return sorted(counts.most, reverse=True)


def _left_out(question: AudienceQuery, groups: int) -> int:
    left_out = max(0, groups - question.limit)
    return min(left_out, 1) if question.by == "day" else left_out


def _group(by: Grouping, key: Any, counts: Counts, names: Mapping[int, Sequence[Any]]) -> Group:
    steps = _listed(counts.steps(key) if key in counts.most else {})
    match by:
        case "video":
            return Group(steps, *names.get(key, ()))
        case "hour":
            return Group(steps, hour=key)
        case "day":
            return Group(steps, day=key)
        case "source":
            return Group(steps, source=key)


def _listed(steps: Steps) -> list[StepCount]:
    """Return all steps in their order, also those without an event."""
    return [
        StepCount(
            LEAD_CAPTURED if step == LEAD else VIDEO_WATCHED,
            None if step == LEAD else step,
            *steps.get(step, (0, 0, 0)),
        )
        for step in (*MILESTONES, LEAD)
    ]
