"""Everything around the panels: common options, places, variables, links."""

from collections.abc import Iterable, Iterator
from typing import Any

from deploy.grafana.panels import DATASOURCE
from deploy.grafana.queries import expanded
from deploy.grafana.style import Json

WIDTH = 24
HIDDEN = 2
ALL = {"text": ["All"], "value": ["$__all"], "selected": True}
ANY = ".+"
"""The value of "All" in a query: also matches values that came up after the page was loaded."""
ANY_OR_NONE = ".*"
"""The same for a label that some Prometheus servers do not add."""


COMMON: Json = {
    "schemaVersion": 41,
    "tags": ["relay"],
    "editable": False,
    "timezone": "browser",
    "weekStart": "monday",
    "refresh": "1m",
    "graphTooltip": 1,
}
"""The options of both dashboards."""


def line(height: int, *panels: Json, widths: Iterable[int] = ()) -> list[Json]:
    """Panels beside one another, equally wide unless `widths` are given."""
    shares = [*widths] or [WIDTH // len(panels)] * len(panels)
    return [
        panel | {"gridPos": {"h": height, "w": width}}
        for panel, width in zip(panels, shares, strict=True)
    ]


def row(title: str) -> list[Json]:
    """A heading across the dashboard."""
    return line(1, {"type": "row", "title": title, "collapsed": False, "panels": []})


def other(title: str, uid: str, tooltip: str) -> Json:
    """Link to the other dashboard, with the same choices but a time of its own."""
    return {
        "type": "link",
        "icon": "dashboard",
        "title": title,
        "tooltip": tooltip,
        "url": f"/d/{uid}",
        "tags": [],
        "includeVars": True,
    }


def placed(panels: list[Json]) -> Iterator[Json]:
    """Number the panels and place them from left to right, line by line."""
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        place = panel["gridPos"]
        if x + place["w"] > WIDTH:
            x, y = 0, y + height
        yield panel | {"id": number, "gridPos": place | {"x": x, "y": y}}
        x, height = x + place["w"], place["h"]


def targets(**more: Any) -> list[Json]:
    """The choice of a data source, and of relays where one Prometheus watches several."""
    of_cluster = {"description": "Of a cluster; elsewhere there is none.", "allValue": ANY_OR_NONE}
    within = 'relay_build_info{job=~"$job", namespace=~"$namespace"}'
    datasource = {"name": "datasource", "label": "Data source", "query": "prometheus"}
    return [
        {"type": "datasource", **datasource},
        choice("job", "relay_build_info", **more),
        choice("namespace", 'relay_build_info{job=~"$job"}', **of_cluster, **more),
        choice("instance", within, **more),
    ]


def source(metric: str) -> Json:
    """The choice of sources, of those that the metric knows."""
    description = "Where events come from, as the relay's config names it."
    return choice("source", f"{metric}{{RELAY}}", description=description)


def choice(name: str, selector: str, **more: Any) -> Json:
    """A variable: the values of a label, one or several or all of them."""
    return {
        "type": "query",
        "name": name,
        "label": name.title(),
        "datasource": DATASOURCE,
        "query": f"label_values({expanded(selector)}, {name})",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ANY,
        "current": ALL,
        **more,
    }
