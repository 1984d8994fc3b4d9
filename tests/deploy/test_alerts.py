"""The alert rules: each fires in its own scenario with its own texts, and no other does."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import incidents, rule_tests
from tests.deploy.prometheus import require_prometheus, rules
from tests.deploy.rule_tests import SCENARIOS
from tests.deploy.scripted_day import ScriptedDay

ALERTS = rules("alert")
ids = [f"{rule['alert']}-{rule['labels']['severity']}" for rule in ALERTS]

NEARLY = {"RelayDown", "RelayNotDurable", "RelayRotationUnfinished", "RelaySinkParked"}
"""What the hiccups of a quiet day come near to: one scrape that fails, a disk that is slow for four
minutes, a rotation of three, a destination that refuses all for eight."""


def firing() -> set[tuple[str, str]]:
    """The alerts that some scenario expects, by name and severity."""
    return {
        (check["alertname"], alert["exp_labels"]["severity"])
        for file in SCENARIOS
        for test in yaml.load(file.read_bytes(), yaml.CSafeLoader)["tests"]
        for check in test["alert_rule_test"]
        for alert in check.get("exp_alerts", [])
    }


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_a_scenario_fires_its_alerts_with_their_texts(file: Path) -> None:
    require_prometheus()
    assert rule_tests.run(file) == ""


def test_every_alert_fires_in_a_scenario() -> None:
    assert firing() == {(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS}


def test_a_quiet_day_raises_no_alert(tmp_path: Path) -> None:
    require_prometheus()
    file = tmp_path / "quiet.yml"
    rule_tests.write(file, ScriptedDay(incidents.QUIET).scrapes(), pending=NEARLY, firing=set())
    assert rule_tests.run(file) == ""


@pytest.mark.parametrize("rule", ALERTS, ids=ids)
def test_an_alert_states_the_problem_the_action_and_its_runbook_section(
    rule: dict[str, Any],
) -> None:
    told = rule["annotations"]
    assert told.keys() == {"summary", "description", "runbook_url"}
    assert (
        told["runbook_url"] == f"{{{{ $externalURL }}}}/user/runbook.html#{rule['alert'].lower()}"
    )
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert len(told["summary"]) < 110
    # At least the problem and the action.
    assert len(re.findall(r"[.!]( |$)", told["description"])) >= 2


@pytest.mark.parametrize("rule", rules("record"), ids=lambda rule: rule["record"])
def test_a_recorded_name_states_level_metric_and_operation(
    rule: dict[str, Any],
) -> None:
    level, metric, operation = rule["record"].split(":")
    assert re.fullmatch(r"(instance_?)?((source|sink)(_[a-z]+)?)?", level)
    assert re.fullmatch(r"relay(_[a-z]+)+", metric)
    assert "_total" not in metric
    assert re.fullmatch(r"((p\d\d|ratio)_)?(rate|increase)\d+[mhd]|age_seconds", operation)
