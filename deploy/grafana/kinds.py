"""The kinds of panels: everything that is the same in all panels of a kind, as Grafana writes it.

`target` says how a query is evaluated: over time or at the end of the shown time, and in which
format; `own` are options that a panel may replace.
"""

from deploy.grafana.style import BLUE, GREY, NOTHING, PLAIN, Json, fixed, steps

# fmt: off
_NO_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []}
_TABLE = _NO_LEGEND | {"displayMode": "table", "showLegend": True}
_LAST = {"calcs": ["lastNotNull"]}
_INSTANT = {"instant": True, "range": False}
_RANGE = {"instant": False, "range": True}
_SINGLE = {"mode": "single", "sort": "asc"}
_MULTI = {"mode": "multi", "sort": "desc"}
_NO_NUMBER = {"match": "null+nan", "result": {"text": NOTHING, "color": GREY, "index": 0}}
_LINE = {"drawStyle": "line", "lineWidth": 2, "fillOpacity": 8, "showPoints": "never"}
_LINES: Json = {
    "type": "timeseries", "target": _RANGE, "own": {"custom": _LINE},
    "options": {"legend": _TABLE | {"calcs": ["lastNotNull", "max"]}, "tooltip": _MULTI},
}

KINDS: dict[str, Json] = {
    # One value, or few, in large letters.
    "stat": {
        "type": "stat", "target": _INSTANT,
        "options": {
            "graphMode": "none", "colorMode": "value", "justifyMode": "auto", "textMode": "auto",
            "wideLayout": True, "showPercentChange": False, "reduceOptions": _LAST,
            "percentChangeColorMode": "standard", "orientation": "auto",
        },
        # A share or a quantile of nothing is shown as nothing.
        "own": {"mappings": [{"type": "special", "options": _NO_NUMBER}],
                "thresholds": steps(PLAIN), "color": {"mode": "thresholds"}, "noValue": NOTHING},
    },
    "lines": _LINES,
    # Lines on a filled area that starts at 0.
    "levels": _LINES | {"own": {"custom": _LINE | {"axisSoftMin": 0}}},
    # Seconds on a logarithmic scale: milliseconds and minutes are both readable.
    "durations": _LINES | {"own": {"unit": "s", "custom": _LINE | {
        "fillOpacity": 0, "scaleDistribution": {"type": "log", "log": 10}}}},
    # Counts of equal stretches of time, stacked; not rates, because a single event must be visible.
    # A bar covers at least 5 minutes: several scrapes even if they are 60 s apart.
    "bars": {
        "type": "timeseries", "target": _RANGE,
        "options": {"legend": _TABLE | {"calcs": ["sum"]}, "tooltip": _MULTI},
        "own": {
            "unit": "locale", "decimals": 0, "maxDataPoints": 100, "interval": "5m",
            "custom": {
                "drawStyle": "bars", "lineWidth": 0, "fillOpacity": 85, "axisSoftMin": 0,
                "barAlignment": 1, "barWidthFactor": 0.85, "stacking": {"mode": "normal"},
            },
        },
    },
    # Horizontal bars compared at one moment, in the order of the queries.
    "ranking": {
        "type": "bargauge", "target": _INSTANT,
        "options": {
            "displayMode": "basic", "valueMode": "text", "namePlacement": "left",
            "showUnfilled": True, "sizing": "auto", "minVizWidth": 8, "minVizHeight": 16,
            "legend": _NO_LEGEND, "reduceOptions": _LAST, "maxVizHeight": 300,
            "orientation": "horizontal",
        },
        "own": {"min": 0, "color": fixed(BLUE), "noValue": NOTHING},
    },
    "by_hour": {
        "type": "barchart", "target": _RANGE | {"format": "table"},
        "options": {
            "orientation": "vertical", "xTickLabelRotation": 0, "xTickLabelMaxLength": 0,
            "stacking": "none", "showValue": "never", "barWidth": 0.85, "groupWidth": 0.7,
            "legend": _NO_LEGEND, "tooltip": _SINGLE, "fullHighlight": False, "xField": "Hour",
            "barRadius": 0, "xTickLabelSpacing": 0,
        },
        "own": {
            "unit": "locale", "maxDataPoints": 10_000, "interval": "15m", "decimals": 0, "min": 0,
            "color": fixed(BLUE),
            "custom": {"lineWidth": 0, "fillOpacity": 85, "gradientMode": "none"},
        },
    },
    # A histogram over time, of buckets in seconds.
    "heat": {
        "type": "heatmap", "target": _RANGE | {"format": "heatmap"},
        "options": {
            "color": {"scheme": "Viridis", "fill": "", "exponent": 0, "steps": 64,
                      "reverse": False, "mode": "scheme"},
            "showValue": "auto", "yAxis": {"unit": "s"}, "legend": {"show": True},
            "tooltip": {"mode": "single"}, "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "calculate": False, "filterValues": {"le": 1e-09}, "cellGap": 1, "selectionMode": "x",
        },
        "own": {"unit": "short"},
    },
    "states": {
        "type": "state-timeline", "target": _RANGE,
        "options": {
            "showValue": "auto", "rowHeight": 0.8, "legend": _NO_LEGEND | {"showLegend": True},
            "tooltip": _SINGLE, "mergeValues": True, "alignValue": "left", "perPage": 20,
        },
        "own": {"unit": "none", "color": {"mode": "thresholds"}},
    },
    "table": {
        "type": "table", "target": _INSTANT | {"format": "table"}, "options": None,
        "own": {"unit": "locale", "noValue": NOTHING},
    },
}
# fmt: on
