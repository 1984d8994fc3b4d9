"""A dashboard's queries as Grafana sends them, with variables filled in."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, cast

from tests.deploy.prometheus import Labels, Prometheus

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
NAMES = ("engagement", "relay")

Panel = dict[str, Any]
Values = dict[Labels, list[tuple[float, float]]]

DAY_S = 86_400
_UNIT_S = {"m": 60, "h": 3600, "d": DAY_S}

_STEPS_S = (60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY_S)
_ROUNDED_UP_AT = (1.5, 1.75, 1.5, 1.25, 1.15, 1.25, 1.5, 1.5, 1.25, 1.5, 1.5, 2, 7)
"""Factor up to which a step is used before the next one: Grafana's own rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query as Prometheus receives it; an instant query has step 0."""

    expr: str
    legend: str
    from_s: int
    to_s: int
    step_s: int

    def answer(self, server: Prometheus) -> Values:
        if self.step_s:
            # Grafana asks at multiples of the step.
            begin_s = self.from_s // self.step_s * self.step_s
            return server.ask_range(self.expr, from_s=begin_s, to_s=self.to_s, step_s=self.step_s)
        found = server.ask(self.expr, at_s=self.to_s)
        return {labels: [(self.to_s, value)] for labels, value in found.items()}

    def name(self, labels: Labels) -> str:
        """The series' name by the legend's format."""
        known = dict(labels)
        return re.sub(r"\{\{(\w+)\}\}", lambda found: known.get(found[1], ""), self.legend)


def read(name: str) -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return board


def panels(board: dict[str, Any]) -> list[Panel]:
    """All but the headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def panel(name: str, title: str, *, stat: bool = False) -> Panel:
    """A dashboard's panel; a number can have the title of another panel."""
    (found,) = [
        each
        for each in panels(read(name))
        if (each["title"], each["type"] == "stat") == (title, stat)
    ]
    return found


def variable(board: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in board["templating"]["list"] if each["name"] == name]
    return cast("dict[str, Any]", found)


def asks(panel: Panel, *, from_s: int, to_s: int, points: int = 288) -> Iterator[Asked]:
    """Make the panel's queries for a time; `points` is the number that fit its width."""
    from_s = _own_begin_s(panel, to_s) or from_s
    step_s = _step_s(panel, to_s - from_s, points)
    for target in panel["targets"]:
        yield Asked(
            expr=filled(target["expr"], range_s=to_s - from_s, step_s=step_s),
            legend=target.get("legendFormat", ""),
            from_s=from_s,
            to_s=to_s,
            step_s=0 if target["instant"] else step_s,
        )


def filled(expr: str, *, range_s: int, step_s: int, **chosen: str) -> str:
    """Fill in the variables as Grafana does, with All for each choice that is not given."""
    known = {
        "__rate_interval": f"{max(240, step_s + 60)}s",
        "__interval": f"{step_s}s",
        "__range": f"{range_s}s",
        "namespace": ".*",
        **dict.fromkeys(("job", "instance", "source", "sink"), ".+"),
        **chosen,
    }
    return re.sub(r"\$(\w+|\{\w+\})", lambda found: known[found[1].strip("{}")], expr)


def by_hour(panel: Panel, values: Sequence[tuple[float, float]], zone: tzinfo) -> dict[str, float]:
    """Sum values by the hour of the day, as the panel's transformations do in a browser."""
    shaped = {each["id"]: each["options"] for each in panel["transformations"]}
    assert [*shaped] == ["formatTime", "groupBy", "sortBy", "organize"]
    assert shaped["formatTime"] == {"timeField": "Time", "outputFormat": "HH", "useTimezone": True}
    hours: dict[str, float] = {}
    for at_s, value in values:
        hour = datetime.fromtimestamp(at_s, zone).strftime("%H")
        hours[hour] = hours.get(hour, 0) + value
    return dict(sorted(hours.items()))


def _own_begin_s(panel: Panel, to_s: int) -> int | None:
    """Midnight or Monday, where the panel has a time of its own."""
    match panel.get("timeFrom"):
        case "now/d":
            return to_s // DAY_S * DAY_S
        case "now/w":
            # The epoch began on a Thursday.
            return (to_s // DAY_S - (to_s // DAY_S + 3) % 7) * DAY_S
        case None:
            return None
        case other:
            raise AssertionError(f"{panel['title']}: what is {other}?")


def _step_s(panel: Panel, range_s: int, points: int) -> int:
    least = panel.get("interval")
    least_s = int(least[:-1]) * _UNIT_S[least[-1]] if least else 60
    wanted_s = range_s / panel.get("maxDataPoints", points)
    for step_s, factor in zip(_STEPS_S, _ROUNDED_UP_AT, strict=True):
        if wanted_s < step_s * factor:
            return max(step_s, least_s)
    return max(7 * DAY_S, least_s)
