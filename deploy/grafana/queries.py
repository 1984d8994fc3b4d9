"""The parts that queries are made of: which series are meant, and over which time they are counted.

Every selector carries the job and the instance that are chosen above the dashboard, as Grafana's
linter wants it, so that one Prometheus can watch several relays.
"""

JOB = 'job=~"$job"'
INSTANCE = 'instance=~"$instance"'
SOURCE = 'source=~"$source"'
SINK = 'sink=~"$sink"'

RANGE = "$__range"
"""The time that the dashboard shows, or the panel where it has a time of its own."""
BAR = "$__interval"
"""The time from one bar to the next."""


def of_relay(metric: str, *matchers: str) -> str:
    return f"{metric}{{{', '.join((JOB, INSTANCE, *matchers))}}}"


def of_source(metric: str, *matchers: str) -> str:
    return of_relay(metric, SOURCE, *matchers)


def of_sink(metric: str, *matchers: str) -> str:
    return of_relay(metric, SINK, *matchers)


def rate(selector: str) -> str:
    return f"rate({selector}[$__rate_interval])"


def increase(selector: str, window: str = RANGE, *, back: str = "") -> str:
    """Count what came in a window that ends now, or `back` ago; a negative one looks ahead."""
    offset = f" offset {back}" if back else ""
    return f"increase({selector}[{window}]{offset})"


def in_each_bar(selector: str, *by: str) -> str:
    """Count what came from a bar's own time to the next bar's.

    Prometheus looks back; without the offset, the bar of a day would show the day before it.
    """
    return total(increase(selector, BAR, back=f"-{BAR}"), *by)


def total(inner: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} ({inner})"


def whole(inner: str) -> str:
    """Prometheus extends what it counted to the edges of the window; people come in whole."""
    return f"round({inner})"


def came(selector: str, *by: str) -> str:
    """Count for bars of what may not come at all; the legend then names only what did."""
    return f"{whole(in_each_bar(selector, *by))} > 0"


def share(part: str, of: str) -> str:
    """Divide; nothing at all where there is nothing to have a share of."""
    return f"{part} / ({of} > 0)"


def quantile(q: float, histogram: str, *by: str) -> str:
    """Estimate from a selector of buckets."""
    return f"histogram_quantile({q}, {total(rate(histogram), 'le', *by)})"


def by_hour_of_day(selector: str) -> str:
    """Count by the hour of the day, from 00:00 to 23:00, over all days of the range.

    A subquery takes its steps at full hours; what was counted in the hour before a step belongs to
    the hour in which its middle lies. The hour becomes a label; $utc shifts it to the viewer's.
    """
    middle = "hour(vector(time() - 1800 + 3600 * $utc))"
    counted = f'scalar({total(increase(selector, "1h"))}) * count_values("hour", {middle})'
    summed = whole(f"sum_over_time(({counted})[{RANGE}:1h])")
    return f'label_replace({summed}, "hour", "0$1", "hour", "(.)")'
