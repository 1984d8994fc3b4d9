"""Everything around the panels: their places, variables, links, the time shown."""

from collections.abc import Iterable, Iterator
from typing import Any

from deploy.grafana.panels import DATASOURCE, link
from deploy.grafana.queries import expanded
from deploy.grafana.style import BAD, Json

WIDTH = 24
HIDDEN = 2
ALL = {"text": ["All"], "value": ["$__all"], "selected": True}
ANY = ".+"
"""The value of "All" in a query: also matches values that came up after the page was loaded."""
ANY_OR_NONE = ".*"
"""The same for a label that some Prometheus servers do not add."""


def line(height: int, *panels: Json, widths: Iterable[int] = ()) -> list[Json]:
    """Panels beside one another, equally wide unless `widths` are given."""
    shares = [*widths] or [WIDTH // len(panels)] * len(panels)
    return [
        panel | {"gridPos": {"h": height, "w": width}}
        for panel, width in zip(panels, shares, strict=True)
    ]


def row(title: str) -> list[Json]:
    """A heading across the dashboard."""
    return line(1, {"type": "row", "collapsed": False, "id": None, "panels": [], "title": title})


def board(
    title: str,
    uid: str,
    description: str,
    *,
    shown: str,
    variables: list[Json],
    panels: list[Json],
    other: tuple[str, str, str],
    marks: str = "",
) -> Json:
    """A dashboard; `shown` is the start of the time that it shows at first.

    `other` is the dashboard to link to, with the same choices but a time of its own; `marks` a
    query for alerts to mark in every panel.
    """
    datasource = _variable("datasource", "datasource", label="Data source", query="prometheus")
    name, uid_of_other, tooltip = other
    shared = {"icon": "dashboard", "tooltip": tooltip, "includeVars": True}
    return {
        "schemaVersion": 41,
        "templating": {"list": [datasource, *variables]},
        "annotations": {"list": [_marks(marks)]} if marks else {},
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["relay"],
        "timezone": "browser",
        "editable": False,
        "graphTooltip": 1,
        "time": {"from": shown, "to": "now"},
        "fiscalYearStartMonth": 0,
        "weekStart": "monday",
        "refresh": "1m",
        "panels": [*_placed(panels)],
        "links": [link(name, f"/d/{uid_of_other}", **shared)],
    }


def _marks(alerts: str) -> Json:
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": BAD,
        "hide": False,
        "builtIn": 0,
        "expr": alerts,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{source}} {{sink}}",
        "tagKeys": "severity",
    }


def _placed(panels: list[Json]) -> Iterator[Json]:
    """Number the panels and place them from left to right, line by line."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        place = panel["gridPos"]
        if x + place["w"] > WIDTH:
            x, y = 0, y + height
        yield panel | {"id": number, "gridPos": place | {"x": x, "y": y}}
        x, height = x + place["w"], place["h"]


def targets(**more: Any) -> list[Json]:
    """The choice of relays, where one Prometheus watches several."""
    of_cluster = {"description": "Of a cluster; elsewhere there is none.", "allValue": ANY_OR_NONE}
    within = 'relay_build_info{job=~"$job", namespace=~"$namespace"}'
    return [
        _choice("job", "relay_build_info", **more),
        _choice("namespace", 'relay_build_info{job=~"$job"}', **of_cluster, **more),
        _choice("instance", within, **more),
    ]


def source(metric: str) -> Json:
    """The choice of sources, of those that the metric knows."""
    description = "Where events come from, as the relay's config names it."
    return _choice("source", f"{metric}{{RELAY}}", description=description)


def sink() -> Json:
    description = "Where events go, as the relay's config names it."
    return _choice("sink", "relay_pending_deliveries{RELAY}", description=description)


def constant(name: str, value: str) -> Json:
    return _variable("constant", name, hide=HIDDEN, query=value)


def _choice(name: str, selector: str, **more: Any) -> Json:
    query = f"label_values({expanded(selector)}, {name})"
    chosen = {"current": ALL, "multi": True, "includeAll": True, "allValue": ANY}
    options = {"query": query, "datasource": DATASOURCE, "refresh": 2, "sort": 1, **chosen, **more}
    return _variable("query", name, **options)


def _variable(kind: str, name: str, **options: Any) -> Json:
    """Put the options in Grafana's order."""
    first = ("label", "hide", "skipUrlSync", "description", "query", "datasource", "current")
    then = ("multi", "allowCustomValue", "refresh", "sort", "includeAll", "allValue")
    last = {"auto": False, "auto_min": "10s", "auto_count": 30}
    usual = {"label": name.title(), "skipUrlSync": False, "multi": False, "allowCustomValue": True}
    known = {"includeAll": False, **usual, **options}
    ordered = {key: known[key] for key in (*first, *then) if key in known}
    return {"type": kind, "name": name, **ordered, **last}
