"""A sink's states over some time: as a strip, in words, and one by one."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay.admin.page import charts
from relay.store.sink_states import Span

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


@dataclass(frozen=True, slots=True)
class Strip:
    """States over some time."""

    bars: Sequence[charts.Bar]
    text: str
    """The bars in words, such as `active 96 %, parked 4 %`."""
    from_ms: int
    middle_ms: int


def strip_of(spans: Sequence[Span], length_ms: int, now_ms: int) -> Strip:
    """Lay out the states up to now."""
    from_ms = now_ms - length_ms
    known = [(each.state, each.from_ms, each.to_ms or now_ms) for each in spans]
    return Strip(
        charts.strip(known, from_ms, now_ms),
        described(spans, from_ms, now_ms),
        from_ms,
        from_ms + length_ms // 2,
    )


def described(spans: Sequence[Span], from_ms: int, now_ms: int) -> str:
    """Say how long a sink was in each state, as shares of the time that is known."""
    shares: dict[str, int] = {}
    for span in spans:
        lasted_ms = (span.to_ms or now_ms) - max(span.from_ms, from_ms)
        if lasted_ms > 0:
            name = span.state or "unknown"
            shares[name] = shares.get(name, 0) + lasted_ms
    total = sum(shares.values())
    if not total:
        return "unknown"
    return ", ".join(f"{name} {_percent(share, total)}" for name, share in shares.items())


def _percent(share: int, total: int) -> str:
    percent = share * 100 / total
    return "under 1 %" if percent < 1 else f"{percent:.0f} %"
