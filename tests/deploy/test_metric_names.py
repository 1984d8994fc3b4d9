"""Metrics named in deploy/ and its documents exist, with the labels named there."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.telemetry.metrics import Metrics
from tests.deploy.prometheus import rules

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("dashboards.md", "deployment.md", "metrics.md", "runbook.md")

_NAME = re.compile(r"(?<![\w:$/.-])(?:\w+:)?(?:relay|process|python)_[a-z]\w*(?::\w+)?")
_SELECTOR = re.compile(r"(?<![\w:])(\w+)\{([^{}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')

OTHERS = {
    # A pip requirement's condition.
    "python_full_version",
    # Where nginx goes if a connection that was kept has ended.
    "relay_afresh",
}
ADDED = {"instance", "job", "namespace"}
"""By Prometheus, the last in a cluster."""

OPEN = {
    "source",
    "sink",
    "secret",
    "version",
    "revision",
    "python",
    "sqlite",
    "postgres",
    "instance",
    "job",
}
"""Labels whose values an operator chooses."""

Known = dict[str, dict[str, set[str]]]


@cache
def known() -> Known:
    """Every sample that a relay exposes, with the values that each of its labels can have."""
    metrics = Metrics(["main"], ["crm"])
    metrics.show_secrets("main", ["1"])
    metrics.store.set_space(1 << 30, floor=256 << 20, log=8 << 20)
    metrics.cluster.set(live=2, away=0, configs=1, free_sinks=0)
    found: Known = {}
    for family in text_string_to_metric_families(metrics.exposition("")[0].decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, defaultdict(set))
            for label, value in sample.labels.items():
                labels[label].add(value)
    return found


@cache
def names() -> set[str]:
    """Names of metrics: samples, histograms as a whole, recorded rules."""
    histograms = {name.removesuffix("_bucket") for name in known()}
    return known().keys() | histograms | {rule["record"] for rule in rules("record")}


def files() -> list[Path]:
    shipped = [
        path
        for path in sorted((ROOT / "deploy").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [*shipped, *(ROOT / "docs" / name for name in DOCUMENTS)]


def strangers(text: str) -> set[str]:
    """Names of metrics that are none."""
    return {name for name in _NAME.findall(text) if name not in names() | OTHERS}


def misfits(text: str) -> set[str]:
    """Selectors with a label that the metric does not have, or a value that it never has."""
    return {
        f"{name}{{{label}{operator}{value!r}}}"
        for name, inside in _SELECTOR.findall(text)
        if name in known()
        for label, operator, value in _MATCHER.findall(inside)
        if not _fits(known()[name], label, operator, value)
    }


def _fits(labels: dict[str, set[str]], label: str, operator: str, value: str) -> bool:
    if label not in labels:
        return label in ADDED
    if label in OPEN or "$" in value:
        return True
    wanted = value.split("|") if "~" in operator else [re.escape(value)]
    return all(any(re.fullmatch(each, one) for one in labels[label]) for each in wanted)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_named_metric_exists_with_its_labels(path: Path) -> None:
    # JSON escapes the quotes of selectors.
    text = path.read_text(encoding="utf-8").replace('\\"', '"')
    assert strangers(text) == set()
    assert misfits(text) == set()


def test_an_unknown_name_or_label_is_detected() -> None:
    assert strangers("rate(relay_lead_captured_total[5m]) / source:relay_leads:rate5m") == {
        "relay_lead_captured_total",
        "source:relay_leads:rate5m",
    }
    assert misfits('relay_sink_state{sink="crm",state="stopped"}') == {
        "relay_sink_state{state='stopped'}"
    }
    assert misfits('relay_requests_total{sink="crm", code=~"2..|9.."}') == {
        "relay_requests_total{sink='crm'}",
        "relay_requests_total{code=~'2..|9..'}",
    }
