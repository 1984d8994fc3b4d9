"""The kinds of panels: everything that is the same in all panels of a kind.

Only what differs from Grafana's defaults is written. `target` says how a query is evaluated: over
time or at the end of the shown time, and in which format; `own` are options that a panel may
replace.
"""

from deploy.grafana.style import BLUE, GREY, NOTHING, PALETTE, PLAIN, Json, fixed, steps

# fmt: off
_HIDDEN_LEGEND = {"showLegend": False}
_INSTANT = {"instant": True, "range": False}
_RANGE = {"instant": False, "range": True}
_BY_STEPS = {"mode": "thresholds"}
_NO_NUMBER = {"match": "null+nan", "result": {"text": NOTHING, "color": GREY, "index": 0}}
_PALETTE: Json = {"color": {"mode": PALETTE}}
_LINE = {"drawStyle": "line", "lineWidth": 2, "fillOpacity": 8, "showPoints": "never"}


def _series(own: Json, *calcs: str) -> Json:
    """A panel over time, whose legend is a table of these calculations."""
    legend = {"displayMode": "table", "calcs": [*calcs]}
    return {"type": "timeseries", "target": _RANGE, "own": _PALETTE | own,
            "options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}}


KINDS: dict[str, Json] = {
    # One value, or few, in large letters. A share or a quantile of nothing is shown as nothing.
    "stat": {
        "type": "stat", "target": _INSTANT, "options": {"graphMode": "none"},
        "own": {"mappings": [{"type": "special", "options": _NO_NUMBER}],
                "thresholds": steps(PLAIN), "color": _BY_STEPS, "noValue": NOTHING},
    },
    "lines": _series({"custom": _LINE}, "lastNotNull", "max"),
    # Lines on a filled area that starts at 0.
    "levels": _series({"custom": _LINE | {"axisSoftMin": 0}}, "lastNotNull", "max"),
    # Seconds on a logarithmic scale: milliseconds and minutes are both readable.
    "durations": _series({"unit": "s", "custom": _LINE | {
        "fillOpacity": 0, "scaleDistribution": {"type": "log", "log": 10}}}, "lastNotNull", "max"),
    # Counts of equal stretches of time, stacked; not rates, because a single event must be visible.
    # A bar covers at least 5 minutes: several scrapes even if they are 60 s apart.
    "bars": _series({
        "unit": "locale", "decimals": 0, "maxDataPoints": 100, "interval": "5m",
        "custom": {
            "drawStyle": "bars", "lineWidth": 0, "fillOpacity": 85, "axisSoftMin": 0,
            "barAlignment": 1, "barWidthFactor": 0.85, "stacking": {"mode": "normal"},
        },
    }, "sum"),
    # Horizontal bars compared at one moment, in the order of the queries.
    "ranking": {
        "type": "bargauge", "target": _INSTANT,
        "options": {"displayMode": "basic", "valueMode": "text", "namePlacement": "left",
                    "orientation": "horizontal", "legend": _HIDDEN_LEGEND},
        "own": {"min": 0, "color": fixed(BLUE), "noValue": NOTHING},
    },
    "by_hour": {
        "type": "barchart", "target": _RANGE | {"format": "table"},
        "options": {"orientation": "vertical", "showValue": "never", "barWidth": 0.85,
                    "legend": _HIDDEN_LEGEND, "xField": "Hour"},
        "own": {"unit": "locale", "maxDataPoints": 10_000, "interval": "15m", "decimals": 0,
                "min": 0, "color": fixed(BLUE), "custom": {"lineWidth": 0, "fillOpacity": 85}},
    },
    # A histogram over time, of buckets in seconds.
    "heat": {
        "type": "heatmap", "target": _RANGE | {"format": "heatmap"},
        "options": {"color": {"mode": "scheme", "scheme": "Viridis"}, "yAxis": {"unit": "s"}},
        "own": {"unit": "short"},
    },
    "states": {
        "type": "state-timeline", "target": _RANGE, "options": {"rowHeight": 0.8},
        "own": {"unit": "none", "color": _BY_STEPS},
    },
    "table": {
        "type": "table", "target": _INSTANT | {"format": "table"}, "options": {},
        "own": {"unit": "locale", "noValue": NOTHING},
    },
}
# fmt: on
