"""The parts that queries are made of: which series are meant, and over which time they are counted.

Every selector carries the job, the namespace and the instance that are chosen above the dashboard,
so that one Prometheus can watch several relays. An instance is one relay, whatever its process.

Counts are exact. `increase` is not: it extends what it has seen to the edges of its window, so that
people come in fractions and no two panels agree. It is left for shares and quantiles.
"""

from collections.abc import Sequence

JOB = 'job=~"$job"'
NAMESPACE = 'namespace=~"$namespace"'
INSTANCE = 'instance=~"$instance"'
SOURCE = 'source=~"$source"'
SINK = 'sink=~"$sink"'

RANGE = "$__range"
"""The time that the dashboard shows, or the panel where it has a time of its own."""
BAR = "$__interval"
"""The time from one bar to the next."""
LOOKBACK = "1d"
"""For how long a relay may be away, and what came before its last scrape is still counted."""
SCRAPED_S = 15
SCRAPED = f"{SCRAPED_S}s"
"""The time between two scrapes; where they are further apart, some steps bring nothing."""
_INSTANT = "1ms"
"""By which a window is moved, or longer, so that a step at its edge is surely out, or in."""


def of_relay(metric: str, *matchers: str) -> str:
    return f"{metric}{{{', '.join((JOB, NAMESPACE, INSTANCE, *matchers))}}}"


def of_source(metric: str, *matchers: str) -> str:
    return of_relay(metric, SOURCE, *matchers)


def of_sink(metric: str, *matchers: str) -> str:
    return of_relay(metric, SINK, *matchers)


def rate(selector: str) -> str:
    return f"rate({selector}[$__rate_interval])"


def increase(selector: str) -> str:
    """Estimate what came in the shown time, for quotients, in which the error cancels out."""
    return f"increase({selector}[{RANGE}])"


def grown(selector: str, *by: str) -> str:
    """Count what came in the shown time, by a counter that goes on from the store's totals."""
    return _difference(selector, RANGE, ends="", begins=f" offset {RANGE}", by=by)


def grown_a_week_ago(selector: str) -> str:
    """Count the same for the same hours of the week before."""
    return _difference(selector, RANGE, ends=" offset 1w", begins=" offset 1w${__range}", by=())


def grown_in_each_bar(selector: str, *by: str) -> str:
    """Count what came from a bar's own time to the next bar's.

    Prometheus looks back; without the offset, the bar of a day would show the day before it.
    """
    return _difference(selector, BAR, ends=f" offset -{BAR}", begins="", by=by)


def _difference(selector: str, window: str, *, ends: str, begins: str, by: Sequence[str]) -> str:
    """Subtract the last value before the window from the last one within it.

    The lowest one within it takes its place where a series begins in the window, or where the store
    was replaced by another, whose totals are lower.
    """
    within = f"{selector}[{window}]{ends}"
    before = f"last_over_time({selector}[{LOOKBACK}]{begins})"
    lowest = f"min_over_time({within})"
    return total(f"last_over_time({within}) - ({before} <= {lowest} or {lowest})", *by)


def counted(selector: str, *by: str, window: str = RANGE) -> str:
    """Count what came in a window that ends now, by a counter that begins at 0 with each start."""
    return _growth(selector, f"[{window}:{SCRAPED}] offset -{_INSTANT}", by)


def counted_in_each_bar(selector: str, *by: str) -> str:
    """Count what came from a bar's own time to the next bar's."""
    return _growth(selector, f"[{BAR}:{SCRAPED}] offset -${{__interval}}{_INSTANT}", by)


def _growth(selector: str, window: str, by: Sequence[str]) -> str:
    """Add up what each scrape has brought, which `irate` knows over a restart too.

    The last hour bridges scrapes that fail.
    """
    steps = f"last_over_time({selector}[1h])[{SCRAPED}{_INSTANT}:{SCRAPED}]"
    growth = f"sum_over_time(irate({steps}){window})"
    return f"round({SCRAPED_S} * {total(growth, *by)})"


def total(inner: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} ({inner})"


def came(selector: str, *by: str) -> str:
    """Count for bars of what may not come at all; the legend then names only what did."""
    return f"{counted_in_each_bar(selector, *by)} > 0"


def share(part: str, of: str) -> str:
    """Divide; nothing at all where there is nothing to have a share of."""
    return f"{part} / ({of} > 0)"


def quantile(q: float, histogram: str, *by: str) -> str:
    """Estimate from a selector of buckets."""
    return f"histogram_quantile({q}, {total(rate(histogram), 'le', *by)})"
