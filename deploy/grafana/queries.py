"""Building blocks of queries.

In a selector, RELAY, SOURCE and SINK stand for the choices above the dashboard: `up{RELAY}`,
`relay_requests_total{SOURCE, code="503"}`. So one Prometheus can watch several relays.

Counts are exact. `increase` extrapolates to the edges of its window, so that people come in
fractions and panels disagree; it is used only for shares and quantiles.
"""

import re
from collections.abc import Sequence

_RELAY = 'job=~"$job", namespace=~"$namespace", instance=~"$instance"'
_CHOSEN = {
    "RELAY": _RELAY,
    "SOURCE": f'{_RELAY}, source=~"$source"',
    "SINK": f'{_RELAY}, sink=~"$sink"',
}

RANGE = "$__range"
"""The time shown by the dashboard, or by the panel where it has its own."""
BAR = "$__interval"
"""The time from one bar to the next."""
LOOKBACK = "1d"
"""Longest absence of a relay over which its totals are still compared."""
SCRAPED_S = 15
SCRAPED = f"{SCRAPED_S}s"
"""The time between two scrapes; at a longer one, some steps add nothing."""
_INSTANT = "1ms"
"""Moves a window's edge off a step, which is then surely inside or outside."""


def expanded(expr: str) -> str:
    """Put in the choices above the dashboard."""
    return re.sub(r"\{(RELAY|SOURCE|SINK)\b", lambda found: f"{{{_CHOSEN[found[1]]}", expr)


def grown(selector: str, *by: str) -> str:
    """Count over the shown time, from a counter of the store's totals, which survive restarts."""
    return _difference(selector, RANGE, ends="", begins=f" offset {RANGE}", by=by)


def grown_a_week_ago(selector: str) -> str:
    """Count over the same hours of the week before."""
    return _difference(selector, RANGE, ends=" offset 1w", begins=" offset 1w${__range}", by=())


def grown_in_each_bar(selector: str, *by: str) -> str:
    """Count from each bar's own time to the next bar's.

    Prometheus looks back; without the offset, a day's bar would show the day before it.
    """
    return _difference(selector, BAR, ends=f" offset -{BAR}", begins="", by=by)


def _difference(selector: str, window: str, *, ends: str, begins: str, by: Sequence[str]) -> str:
    """Subtract the last value before the window from the last one within it.

    Where a series begins within the window, or a store with lower totals replaced another, the
    lowest value within the window is subtracted instead. Relays that share a store have the same
    total, some of them a little later, so the highest one counts.
    """
    within = f"{selector}[{window}]{ends}"
    last = shared(f"last_over_time({within})")
    before = shared(f"last_over_time({selector}[{LOOKBACK}]{begins})")
    lowest = f"min_over_time({within})"
    first = f"({before} <= {shared(lowest)} or min without (instance, pod) ({lowest}))"
    return _total(f"{last} - {first}", by)


def shared(inner: str) -> str:
    """Take a figure of the store once, although each relay that shares the store exposes it."""
    return f"max without (instance, pod) ({inner})"


def counted(selector: str, *by: str, window: str = RANGE) -> str:
    """Count over a window that ends now, from a counter that restarts at 0 with the relay."""
    return _growth(selector, f"[{window}:{SCRAPED}] offset -{_INSTANT}", by)


def counted_in_each_bar(selector: str, *by: str) -> str:
    """Count from each bar's own time to the next bar's."""
    return _growth(selector, f"[{BAR}:{SCRAPED}] offset -${{__interval}}{_INSTANT}", by)


def _growth(selector: str, window: str, by: Sequence[str]) -> str:
    """Add up the growth from scrape to scrape; `irate` handles restarts.

    The lookback of an hour bridges failed scrapes.
    """
    steps = f"last_over_time({selector}[1h])[{SCRAPED}{_INSTANT}:{SCRAPED}]"
    return f"round({SCRAPED_S} * {_total(f'sum_over_time(irate({steps}){window})', by)})"


def _total(inner: str, by: Sequence[str]) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} ({inner})"


def came(selector: str, *by: str) -> str:
    """Count for bars, without series that are 0, so that the legend names only the others."""
    return f"{counted_in_each_bar(selector, *by)} > 0"


def share(part: str, of: str) -> str:
    """Divide; no result for a share of nothing."""
    return f"{part} / ({of} > 0)"


def rate(selector: str, *by: str) -> str:
    return _total(f"rate({selector}[$__rate_interval])", by)


def quantile(q: float, histogram: str, *by: str) -> str:
    """Estimate from a selector of buckets."""
    return f"histogram_quantile({q}, {rate(histogram, 'le', *by)})"
