"""The rules of Grafana's dashboard-linter, a program that cannot be counted on to be at hand.

A rule yields the faults that it finds and has the linter's name for it, so that one `.lint` file
says to both what to let pass.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml

from tests.deploy.viewer import Panel, panels

Board = dict[str, Any]
Fault = tuple[str, str]
"""The panel's title (or nothing) and what is wrong."""

UNITS = {
    *("none", "ops", "short", "locale", "bytes", "s", "percentunit", "dateTimeFromNow"),
    *("dtdurations", "dthms"),
}
"""Of the units that the linter knows, those in use; another one is first looked up there."""

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RATE_INTERVAL = timedelta(seconds=9001)
_STANDS_FOR = {"__rate_interval": "9001s", "__interval": "77s", "__range": "7777s"}
_FUNCTIONS = {"label_names", "label_values", "metrics", "query_result"}


def expressions(panel: Panel) -> Iterator[promql.Expr]:
    for target in panel["targets"]:
        yield promql.parse(outside_of_strings(target["expr"]))


def outside_of_strings(expr: str) -> str:
    """Replace the variables that are no part of a string; there, any text will do."""
    return re.sub(
        r'"[^"]*"|\$\{?(\w+)\}?',
        lambda found: _STANDS_FOR[found[1]] if found[1] else found[0],
        expr,
    )


def parts(expr: promql.Expr) -> list[promql.Expr]:
    """The expression and all within it."""
    found: list[promql.Expr] = []
    promql.walk(expr, found.append)
    return found


def selectors(panel: Panel) -> Iterator[promql.VectorSelector]:
    for expr in expressions(panel):
        for part in parts(expr):
            if isinstance(part, promql.VectorSelector):
                yield part


def _variables(board: Board, kind: str) -> list[dict[str, Any]]:
    return [each for each in board["templating"]["list"] if each["type"] == kind]


def template_datasource(board: Board) -> Iterator[Fault]:
    found = [(each["name"], each["label"]) for each in _variables(board, "datasource")]
    if found != [("datasource", "Data source")]:
        yield "", f"wants one variable 'datasource' called 'Data source', has {found}"


def _template(name: str) -> Callable[[Board], Iterator[Fault]]:
    def rule(board: Board) -> Iterator[Fault]:
        (found,) = [each for each in _variables(board, "query") if each["name"] == name] or [{}]
        wanted = {
            "datasource": _DATASOURCE,
            "label": name.title(),
            "multi": True,
            "allValue": ".+",
        }
        for key, value in wanted.items():
            if found.get(key) != value:
                yield "", f"variable {name} wants {key} {value}"

    return rule


def template_label_promql(board: Board) -> Iterator[Fault]:
    for variable in _variables(board, "query"):
        found = re.fullmatch(r"([a-z_]+)\((.+), \w+\)", variable["query"])
        if found is None or found[1] not in _FUNCTIONS:
            yield "", f"variable {variable['name']}: {variable['query']}"
        else:
            promql.parse(found[2])


def template_on_time_change_reload(board: Board) -> Iterator[Fault]:
    for variable in _variables(board, "query"):
        if variable["refresh"] != 2:
            yield "", f"variable {variable['name']} is not read again for another time"


def panel_datasource(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        if any(each != _DATASOURCE for each in asked):
            yield panel["title"], "does not ask the chosen data source"


def panel_title_description(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        if not panel.get("title") or not panel.get("description"):
            yield panel.get("title", ""), "wants a title and a description"


def panel_units(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield panel["title"], "wants a known unit"


def panel_no_targets(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        if not panel["targets"]:
            yield panel["title"], "asks nothing"


def target_promql(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        try:
            list(expressions(panel))
        except (ValueError, KeyError) as error:
            yield panel["title"], str(error)


def target_rate_interval(board: Board) -> Iterator[Fault]:
    for panel, call in _calls(board):
        windows = [each.range for each in call.args if isinstance(each, promql.MatrixSelector)]
        if call.func.name in {"rate", "irate"} and {*windows} - {_RATE_INTERVAL}:
            yield panel["title"], f"{call.func.name} over something else than $__rate_interval"


def target_counter_agg(board: Board) -> Iterator[Fault]:
    for panel in panels(board):
        all_parts = [part for expr in expressions(panel) for part in parts(expr)]
        counted = [
            str(window.vector_selector)
            for part in all_parts
            if isinstance(part, promql.Call) and part.func.name in {"rate", "irate", "increase"}
            for window in part.args
            if isinstance(window, promql.MatrixSelector)
        ]
        counters = [
            str(part)
            for part in all_parts
            if isinstance(part, promql.VectorSelector) and (part.name or "").endswith("_total")
        ]
        if Counter(counters) - Counter(counted):
            yield panel["title"], "has a counter outside of rate, irate and increase"


def _target(label: str) -> Callable[[Board], Iterator[Fault]]:
    def rule(board: Board) -> Iterator[Fault]:
        for panel in panels(board):
            for selector in selectors(panel):
                wanted = (label, promql.MatchOp.Re, f"${label}")
                found = [(each.name, each.op, each.value) for each in selector.matchers.matchers]
                if wanted not in found:
                    yield panel["title"], f"{selector.name} wants {label}"

    return rule


def uneditable(board: Board) -> Iterator[Fault]:
    if board["editable"]:
        yield "", "can be edited"


def _calls(board: Board) -> Iterator[tuple[Panel, promql.Call]]:
    for panel in panels(board):
        for expr in expressions(panel):
            for part in parts(expr):
                if isinstance(part, promql.Call):
                    yield panel, part


RULES: dict[str, Callable[[Board], Iterator[Fault]]] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": _template("job"),
    "template-instance-rule": _template("instance"),
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-counter-agg-rule": target_counter_agg,
    "target-job-rule": _target("job"),
    "target-instance-rule": _target("instance"),
    "uneditable-dashboard": uneditable,
}


def let_pass(file: Path) -> set[tuple[str, str, str]]:
    """Rule, dashboard and panel of each exception that a `.lint` file gives a reason for."""
    exclusions = yaml.safe_load(file.read_text(encoding="utf-8"))["exclusions"]
    return {
        (rule, entry["dashboard"], entry["panel"])
        for rule, why in exclusions.items()
        if why["reason"]
        for entry in why["entries"]
    }
