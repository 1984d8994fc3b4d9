"""The rules of Grafana's dashboard-linter, under its names, so that both read one `.lint` file.

The linter itself is a Go program that is rarely installed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from tests.deploy.dashboards import Panel, panels

Board = dict[str, Any]

UNITS = {
    *("none", "ops", "short", "locale", "bytes", "s", "percentunit", "dateTimeFromNow"),
    *("dtdurations", "dthms"),
}
"""Units in use that the linter knows; look a new one up there first."""

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE_INTERVAL = timedelta(seconds=9001)
_STANDS_FOR = {"__rate_interval": "9001s", "__interval": "77s", "__range": "7777s"}
_LABEL_QUERY = r"(label_names|label_values|metrics|query_result)\((.+), \w+\)"


def parts(panel: Panel) -> Iterator[promql.Expr]:
    """Every part of a panel's queries."""
    for target in panel["targets"]:
        found: list[promql.Expr] = []
        promql.walk(promql.parse(_filled(target["expr"])), found.append)
        yield from found


def _filled(expr: str) -> str:
    """Replace the variables outside of strings; inside, any text will do."""
    return re.sub(
        r'"[^"]*"|\$\{?(\w+)\}?',
        lambda found: _STANDS_FOR[found[1]] if found[1] else found[0],
        expr,
    )


def selectors(panel: Panel) -> Iterator[promql.VectorSelector]:
    return (part for part in parts(panel) if isinstance(part, promql.VectorSelector))


def asks_for(selector: promql.VectorSelector, label: str) -> bool:
    """Whether a selector matches the variable of this name."""
    matchers = [(each.name, each.op, each.value) for each in selector.matchers.matchers]
    return (label, promql.MatchOp.Re, f"${label}") in matchers


def _all_ask_for(label: str) -> Callable[[Panel], bool]:
    return lambda panel: all(asks_for(each, label) for each in selectors(panel))


def _variables(board: Board, **options: Any) -> list[dict[str, Any]]:
    return [each for each in board["templating"]["list"] if options.items() <= each.items()]


def _offers(board: Board, name: str) -> bool:
    options = {"datasource": _DATASOURCE, "label": name.title(), "multi": True, "allValue": ".+"}
    return bool(_variables(board, type="query", name=name, **options))


def _asks_by_promql(variable: dict[str, Any]) -> bool:
    found = re.fullmatch(_LABEL_QUERY, variable["query"])
    return found is not None and promql.parse(found[2]) is not None


def _is_promql(panel: Panel) -> bool:
    try:
        return bool([*parts(panel)])
    except (ValueError, KeyError):
        return False


def _windows(panel: Panel, *functions: str) -> list[promql.MatrixSelector]:
    calls = [part for part in parts(panel) if isinstance(part, promql.Call)]
    named = [call for call in calls if call.func.name in functions]
    return [arg for call in named for arg in call.args if isinstance(arg, promql.MatrixSelector)]


def _counts_by_rate(panel: Panel) -> bool:
    totals = (each for each in selectors(panel) if (each.name or "").endswith("_total"))
    counters = Counter(map(str, totals))
    counted = _windows(panel, "rate", "irate", "increase")
    return not counters - Counter(str(each.vector_selector) for each in counted)


BOARD_RULES: dict[str, Callable[[Board], bool]] = {
    "template-datasource-rule": lambda board: (
        [(each["name"], each["label"]) for each in _variables(board, type="datasource")]
        == [("datasource", "Data source")]
    ),
    "template-job-rule": lambda board: _offers(board, "job"),
    "template-instance-rule": lambda board: _offers(board, "instance"),
    "template-label-promql-rule": lambda board: all(
        map(_asks_by_promql, _variables(board, type="query"))
    ),
    "template-on-time-change-reload-rule": lambda board: all(
        each["refresh"] == 2 for each in _variables(board, type="query")
    ),
    "uneditable-dashboard": lambda board: not board["editable"],
}
PANEL_RULES: dict[str, Callable[[Panel], bool]] = {
    "panel-datasource-rule": lambda panel: all(
        each["datasource"] == _DATASOURCE for each in (panel, *panel["targets"])
    ),
    "panel-title-description-rule": lambda panel: bool(panel["title"] and panel["description"]),
    "panel-units-rule": lambda panel: panel["fieldConfig"]["defaults"].get("unit") in UNITS,
    "panel-no-targets-rule": lambda panel: bool(panel["targets"]),
    "target-promql-rule": _is_promql,
    "target-rate-interval-rule": lambda panel: all(
        window.range == _RATE_INTERVAL for window in _windows(panel, "rate", "irate")
    ),
    "target-counter-agg-rule": _counts_by_rate,
    "target-job-rule": _all_ask_for("job"),
    "target-instance-rule": _all_ask_for("instance"),
}
RULES = [*BOARD_RULES, *PANEL_RULES]


def broken(rule: str, board: Board) -> set[tuple[str, str, str]]:
    """Rule, dashboard and panel (or nothing) of each fault."""
    if rule in BOARD_RULES:
        titles = [] if BOARD_RULES[rule](board) else [""]
    else:
        titles = [each["title"] for each in panels(board) if not PANEL_RULES[rule](each)]
    return {(rule, board["title"], title) for title in titles}


def exceptions(file: Path) -> set[tuple[str, str, str]]:
    """Rule, dashboard and panel of each exception that a `.lint` file gives a reason for."""
    exclusions = yaml.safe_load(file.read_text(encoding="utf-8"))["exclusions"]
    return {
        (rule, entry["dashboard"], entry["panel"])
        for rule, why in exclusions.items()
        if why["reason"]
        for entry in why["entries"]
    }
