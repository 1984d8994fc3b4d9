"""Steps of one event in order of time, with the gaps between them."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from relay.admin.page.views.events import steps
from relay.admin.page.views.events.steps import DeliveryTimeline, TimelineLine
from relay.core.sink_status import State
from relay.core.units import duration
from relay.store.sink_states import StateSpan

SHOWN = 100
"""Attempts that are shown at once."""

GAP_MIN_MS = 1000
"""Shortest time between two steps that is written out."""

_SCALES_S = (1, 5, 10, 30, 60, 300, 900, 3600)
_HINDRANCES: Sequence[State] = ("parked", "throttled", "paused")


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of an event; of its attempts those from `first` to before `last`."""

    steps: Sequence[TimelineLine]
    scale_ms: int
    """Length of a full bar."""
    first: int
    last: int
    total: int


def timeline(record: DeliveryTimeline, *, before: int | None = None) -> Timeline:
    """Lay out the newest attempts, or those before the one with this index, and all else."""
    total = len(record.attempts)
    last = total if before is None else min(before, total)
    first = max(last - SHOWN, 0)
    past = [*steps.attempts(record, first, last), *steps.replays(record)]
    ahead: list[TimelineLine] = []
    if last == total:
        past += steps.ends(record)
        ahead = sorted(steps.pending(record), key=lambda step: step.at_ms or record.now_ms)
    past.sort(key=lambda step: (step.at_ms or 0, step.end_ms))
    longest_ms = max((step.duration_ms or 0 for step in past), default=0)
    return Timeline(
        steps=[*_with_gaps([steps.receipt(record.event), *past], record.states), *ahead],
        scale_ms=_scale(longest_ms),
        first=first,
        last=last,
        total=total,
    )


def _with_gaps(
    past: Sequence[TimelineLine], states: Mapping[str, Sequence[StateSpan]]
) -> Iterator[TimelineLine]:
    end_ms = past[0].end_ms
    for step in past:
        at_ms = end_ms if step.at_ms is None else step.at_ms
        gap_ms = at_ms - end_ms
        if gap_ms < GAP_MIN_MS:
            yield step
        else:
            hindrance = _hindrance(states.get(step.sink, ()), end_ms, at_ms)
            between = f"; {step.sink} was {hindrance} in between" if hindrance else ""
            yield replace(step, gap=f"{duration(gap_ms)} later{between}")
        end_ms = max(end_ms, step.end_ms)


def _hindrance(spans: Sequence[StateSpan], from_ms: int, to_ms: int) -> str:
    """Name the states of a sink between two times in which it was not sent everything."""
    states = {
        span.state
        for span in spans
        if span.from_ms < to_ms and (span.to_ms is None or span.to_ms > from_ms)
    }
    return steps.listed([state for state in _HINDRANCES if state in states])


def _scale(longest_ms: int) -> int:
    fitting = (seconds * 1000 for seconds in _SCALES_S if seconds * 1000 >= longest_ms)
    return next(fitting, longest_ms)
