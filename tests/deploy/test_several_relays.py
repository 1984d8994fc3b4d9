"""Several relays at one Prometheus: kept apart, and the worst of them seen.

promtool answers the panels' queries from series that are made for them.
"""

from pathlib import Path

import pytest

from tests.deploy import dashboard_linter, dashboards, rule_tests
from tests.deploy.test_metric_names import known

EAST, WEST = (
    f'job="relay",namespace="{place}",instance="{place}/relay-0"' for place in ("east", "west")
)
STATES = ("active", "paused", "throttled", "parked")


def expr(title: str, **chosen: str) -> str:
    """The only query of a panel, with these choices above the dashboard."""
    (target,) = dashboards.panel("relay", title)["targets"]
    return dashboards.filled(target["expr"], range_s=0, step_s=0, **chosen)


def faults(file: Path, query: str, series: dict[str, int], found: dict[str, int]) -> str:
    """Promtool's complaints about a query's result."""
    samples = [{"labels": f"{{{labels}}}", "value": value} for labels, value in found.items()]
    check: dict[str, object] = {"expr": query, "eval_time": "0", "exp_samples": samples}
    values = {name: str(value) for name, value in series.items()}
    return rule_tests.evaluate(file, every="1m", series=values, checks=[check])


def in_state(relay: str, state: str) -> dict[str, int]:
    return {
        f'relay_sink_state{{{relay},sink="crm",state="{each}"}}': int(each == state)
        for each in STATES
    }


@pytest.mark.parametrize("worst", STATES)
@pytest.mark.parametrize("other", STATES)
def test_a_sink_shows_its_worst_state_of_all_relays(tmp_path: Path, worst: str, other: str) -> None:
    place = max(STATES.index(worst), STATES.index(other))
    series = in_state(EAST, worst) | in_state(WEST, other)
    query = expr("State of the sinks")
    assert faults(tmp_path / "test.yml", query, series, {'sink="crm"': place}) == ""


def test_the_numbers_of_states_have_their_names() -> None:
    panel = dashboards.panel("relay", "State of the sinks")
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    named = {int(number): each["text"] for number, each in mapping["options"].items()}
    assert named == dict(enumerate(STATES))


def test_a_chosen_namespace_excludes_others(tmp_path: Path) -> None:
    series = in_state(EAST, "active") | in_state(WEST, "parked")
    query = expr("State of the sinks", namespace="east")
    assert faults(tmp_path / "test.yml", query, series, {'sink="crm"': 0}) == ""


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_every_query_follows_the_chosen_namespace_source_and_sink(name: str) -> None:
    for panel in dashboards.panels(dashboards.read(name)):
        for selector in dashboard_linter.selectors(panel):
            labels = known().get(selector.name or "", {}).keys() & {"source", "sink"}
            for label in ("namespace", *labels):
                assert dashboard_linter.asks_for(selector, label), (panel["title"], label)


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_relays_without_a_namespace_are_included(name: str) -> None:
    variable = dashboards.variable(dashboards.read(name), "namespace")
    assert (variable["allValue"], variable["current"]["value"]) == (".*", ["$__all"])


FIRING = 'alertstate="firing",severity'
ALERTS = {
    f'ALERTS{{{EAST},alertname="RelayBacklogOld",{FIRING}="ticket",sink="crm"}}': 1,
    f'ALERTS{{{EAST},alertname="RelayBacklogOld",{FIRING}="page",sink="crm"}}': 1,
    f'ALERTS{{{EAST},alertname="RelayBacklogOld",{FIRING}="ticket",sink="sales"}}': 1,
    f'ALERTS{{{WEST},alertname="RelayDown",{FIRING}="page"}}': 1,
    # Over several instances, so that it names none.
    'ALERTS{job="relay",namespace="east",alertname="RelayNoEvents",'
    f'{FIRING}="ticket",source="main"}}': 1,
}


def test_alerts_are_shown_by_source_and_sink_and_a_page_hides_a_ticket(
    tmp_path: Path,
) -> None:
    found = {
        'alertname="RelayBacklogOld",sink="crm"': 2,
        'alertname="RelayBacklogOld",sink="sales"': 1,
        'alertname="RelayNoEvents",source="main"': 1,
        'alertname="RelayDown"': 2,
    }
    assert faults(tmp_path / "test.yml", expr("Alerts"), ALERTS, found) == ""


def test_a_choice_keeps_alerts_without_that_label(tmp_path: Path) -> None:
    found = {
        'alertname="RelayBacklogOld",sink="sales"': 1,
        'alertname="RelayNoEvents",source="main"': 1,
    }
    query = expr("Alerts", instance="east/relay-0", namespace="east", sink="sales")
    assert faults(tmp_path / "test.yml", query, ALERTS, found) == ""
