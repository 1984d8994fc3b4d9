"""The builder: every panel of a dashboard is one call, by its kind, with title, query and unit.

Queries are a string, or several by their legends. Further options have Grafana's names (`decimals`,
`noValue`); an unknown one is refused. Descriptions are in docs/dashboards.md.
"""

from collections.abc import Mapping
from functools import partial
from string import ascii_uppercase
from typing import Any

from deploy.grafana.kinds import KINDS
from deploy.grafana.queries import expanded
from deploy.grafana.style import Json, fixed

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
"""The data source chosen above the dashboard."""

Queries = str | Mapping[str, str]

_PANEL = ("timeFrom", "hideTimeOverride", "maxDataPoints", "transformations", "interval")
_FIELD = (
    *("unit", "decimals", "min", "max", "mappings", "thresholds", "color", "links", "noValue"),
    "custom",
)


def panel(kind: str, title: str, queries: Queries, unit: str = "", **options: Any) -> Json:
    """Make a panel without its number, place and description."""
    look = KINDS[kind]
    own: Json = look["own"] | ({"unit": unit} if unit else {}) | options
    if "custom" in own:
        own["custom"] = look["own"]["custom"] | own["custom"]
    if "transformations" in own:
        steps = own["transformations"].items()
        own["transformations"] = [{"id": name, "options": step} for name, step in steps]
    overrides = [
        *(_override(name, "color", fixed(value)) for name, value in own.pop("colours", {}).items()),
        *(_override(name, "unit", value) for name, value in own.pop("units", {}).items()),
    ]
    links = [runbook(alert, alert.lower()) for alert in own.pop("alerts", [])]
    if unknown := own.keys() - {*_PANEL, *_FIELD}:
        raise TypeError(f"panel {title!r}: unknown options {unknown}")
    return {
        "type": look["type"],
        "title": title,
        "datasource": DATASOURCE,
        "targets": _targets(queries, look["target"]),
        "links": links,
        "options": look["options"],
        "fieldConfig": {
            "defaults": {key: own[key] for key in _FIELD if key in own},
            "overrides": overrides,
        },
        **{key: own[key] for key in _PANEL if key in own},
    }


stat = partial(panel, "stat")
lines = partial(panel, "lines")
levels = partial(panel, "levels")
durations = partial(panel, "durations")
bars = partial(panel, "bars")
ranking = partial(panel, "ranking")
heat = partial(panel, "heat")
states = partial(panel, "states")


def by_hour(title: str, query: str) -> Json:
    """Sums by the hour of the day, over all days of the range.

    The browser reads the hour off each bar's time, because Prometheus knows only UTC. A bar is a
    quarter of an hour, which no time zone cuts; the number of points is Prometheus' limit.
    """
    named = {"Time": {"operation": "groupby", "aggregations": []}}
    added = {"Value": {"operation": "aggregate", "aggregations": ["sum"]}}
    transformations = {
        "formatTime": {"timeField": "Time", "outputFormat": "HH", "useTimezone": True},
        "groupBy": {"fields": named | added},
        "sortBy": {"fields": {}, "sort": [{"field": "Time"}]},
        "organize": {"renameByName": {"Time": "Hour", "Value (sum)": title}},
    }
    return panel("by_hour", title, query, transformations=transformations)


def table(title: str, labels: Mapping[str, str], queries: Queries, **options: Any) -> Json:
    """Labels under their headings, then the values of several queries under their names.

    Grafana calls these values Value #A, Value #B and so on.
    """
    values = [] if isinstance(queries, str) else zip(ascii_uppercase, queries, strict=False)
    headings = {**labels, **{f"Value #{letter}": name for letter, name in values}}
    order = {field: place for place, field in enumerate(headings)}
    transformations = {
        "merge": {},
        "filterFieldsByName": {"include": {"names": [*headings]}},
        "organize": {"indexByName": order, "renameByName": headings},
    }
    return panel("table", title, queries, transformations=transformations, **options)


def runbook(title: str, section: str) -> Json:
    """Link to a section; `raw`, because an encoded address leads nowhere."""
    url = f"${{runbook:raw}}#{section}"
    return {"title": f"Runbook: {title}", "url": url, "targetBlank": True}


def _targets(queries: Queries, how: Json) -> list[Json]:
    """Letter the queries, as Grafana does; in tables, legends are not used."""
    named = {"": queries} if isinstance(queries, str) else queries
    return [
        {"expr": expanded(expr), "refId": letter, "datasource": DATASOURCE}
        | how
        | ({} if how.get("format") == "table" else {"legendFormat": legend})
        for letter, (legend, expr) in zip(ascii_uppercase, named.items(), strict=False)
    ]


def _override(name: str, option: str, value: object) -> Json:
    """Set an option of one series; a name between slashes is a regular expression."""
    matcher = {"id": "byRegexp" if name[0] == "/" else "byName", "options": name.strip("/")}
    return {"matcher": matcher, "properties": [{"id": option, "value": value}]}
