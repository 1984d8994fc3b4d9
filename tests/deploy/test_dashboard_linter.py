"""The dashboards keep the rules of Grafana's own linter, and each rule detects a violation."""

from collections.abc import Callable

import pytest

from tests.deploy import dashboards
from tests.deploy.dashboard_linter import RULES, Board, broken, exceptions
from tests.deploy.dashboards import variable

EXCEPTIONS = exceptions(dashboards.FOLDER / ".lint")


@pytest.mark.parametrize("rule", RULES)
def test_the_dashboards_break_a_rule_only_where_an_exception_says_why(rule: str) -> None:
    found = set().union(*(broken(rule, dashboards.read(name)) for name in dashboards.NAMES))
    assert found == {each for each in EXCEPTIONS if each[0] == rule}


def ask(board: Board, expr: str) -> None:
    board["panels"][0]["targets"][0]["expr"] = expr


BROKEN: dict[str, Callable[[Board], object]] = {
    "template-datasource-rule": lambda board: variable(board, "datasource").update(name="ds"),
    "template-job-rule": lambda board: variable(board, "job").update(allValue=".*"),
    "template-instance-rule": lambda board: variable(board, "instance").update(multi=False),
    "template-label-promql-rule": lambda board: variable(board, "source").update(query="source"),
    "template-on-time-change-reload-rule": lambda board: variable(board, "job").update(refresh=1),
    "panel-datasource-rule": lambda board: board["panels"][0].update(datasource={"uid": "abc"}),
    "panel-title-description-rule": lambda board: board["panels"][0].update(description=""),
    "panel-units-rule": lambda board: board["panels"][0]["fieldConfig"]["defaults"].pop("unit"),
    "panel-no-targets-rule": lambda board: board["panels"][0].update(targets=[]),
    "target-promql-rule": lambda board: ask(board, "sum(up"),
    "target-rate-interval-rule": lambda board: ask(board, "rate(relay_requests_total[5m])"),
    "target-counter-agg-rule": lambda board: ask(board, "sum(relay_requests_total)"),
    "target-job-rule": lambda board: ask(board, 'min(up{instance=~"$instance"})'),
    "target-instance-rule": lambda board: ask(board, 'min(up{job=~"$job", instance="a"})'),
    "uneditable-dashboard": lambda board: board.update(editable=True),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_detects_a_violation(rule: str) -> None:
    board = dashboards.read("relay")
    BROKEN[rule](board)
    assert len(broken(rule, board) - EXCEPTIONS) == 1
