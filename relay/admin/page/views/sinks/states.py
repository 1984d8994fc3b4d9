"""A sink's states over some time: as a strip, in words, and one by one."""

from collections.abc import Sequence

import msgspec

from relay.admin.page import charts
from relay.core.minutes import DAY_MS
from relay.core.units import duration
from relay.store.sink_states import StateSpan

WEEK_MS = 7 * DAY_MS

SHOWN_MIN_MS = 1000
"""Shorter times without a state are rounding."""


class Strip(msgspec.Struct, frozen=True):
    """States over some time."""

    bars: Sequence[charts.Bar]
    text: str
    """The bars in words, such as `active 23 h 10 min, parked 50 min`."""
    from_ms: int
    middle_ms: int


def strip_of(spans: Sequence[StateSpan], length_ms: int, now_ms: int) -> Strip:
    """Lay out the states up to now."""
    from_ms = now_ms - length_ms
    known = [(each.state, each.from_ms, each.to_ms or now_ms) for each in spans]
    return Strip(
        charts.strip(known, from_ms, now_ms),
        described(spans, from_ms, now_ms),
        from_ms,
        from_ms + length_ms // 2,
    )


def described(spans: Sequence[StateSpan], from_ms: int, now_ms: int) -> str:
    """Say how long a sink was in each state."""
    lasted: dict[str, int] = {}
    for span in spans:
        span_ms = (span.to_ms or now_ms) - max(span.from_ms, from_ms)
        if span.state is not None and span_ms > 0:
            lasted[span.state] = lasted.get(span.state, 0) + span_ms
    unknown_ms = now_ms - from_ms - sum(lasted.values())
    if unknown_ms >= SHOWN_MIN_MS:
        lasted["unknown"] = unknown_ms
    return ", ".join(f"{state} {duration(ms)}" for state, ms in lasted.items())
