"""Every panel has series from a relay on either engine, or says what their absence means."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from relay import config
from tests.app.cluster import settings
from tests.caller import post
from tests.deploy import dashboards
from tests.guarantees.process import until
from tests.service import SINK, Relay, read, serving
from tests.stub_server import StubServer

LEAD = b'{"id": "evt_1", "event": "lead.captured", "data": {"email": "ada@example.com"}}'

ABSENT = {
    "sqlite": {"relay_members", "relay_members_configs_differ", "relay_sinks_without_owner"},
    "postgres": {
        "relay_store_free_bytes",
        "relay_store_min_free_bytes",
        "relay_store_log_bytes",
    },
}
"""Metrics of dashboards that a relay on this engine does not have; all others it has at once."""

_SELECTOR = re.compile(r"\b((?:relay|process)_\w+)\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_OF_PROMETHEUS = {"job", "instance", "namespace"}
PANELS = [
    (f"{name}: {panel['title']} ({panel['type']})", panel)
    for name in dashboards.NAMES
    for panel in dashboards.panels(dashboards.read(name))
]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> str:
    engine: str = request.param
    return engine


@pytest.fixture
async def samples(
    engine: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    destination: StubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Sample]:
    """What a relay exposes that has taken a lead and delivered it."""
    # A minute otherwise.
    monkeypatch.setattr("relay.core.backlog_trend.KNOWN_AFTER_S", 1.0)
    monkeypatch.setattr("relay.core.backlog_trend.SAMPLE_EVERY_S", 0.5)
    async with serving(document(engine, request, tmp_path, destination)) as relay:
        assert (await relay.ask(post(LEAD))).status == 202
        await relay.until_counted("relay_deliveries_total", "delivered", "sales")
        text = await measured(relay)
    return [each for family in text_string_to_metric_families(text) for each in family.samples]


def document(
    engine: str, request: pytest.FixtureRequest, folder: Path, destination: StubServer
) -> config.Config:
    if engine == "postgres":
        return settings(folder, request.getfixturevalue("postgres_place"), destination)
    return read(folder, tables=SINK.format(name="sales", url=destination.url("/"), more=""))


async def measured(relay: Relay) -> str:
    """Return the metrics once those have come that are measured from time to time."""
    last = {"relay_sink_waits_for{", "relay_backlog_flow_per_second{"}
    text = ""

    async def is_measured() -> bool:
        nonlocal text
        text = await relay.metrics()
        store = await relay.counts("relay_store_bytes")
        return bool(store) and all(f"\n{name}" in text for name in last)

    await until(is_measured, what="the store's size, and what the sink waits for")
    return text


def selectors(query: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The metrics of a query, with the matchers that the relay's own labels have to fit."""
    filled = dashboards.filled(query, range_s=600, step_s=60)
    for name, matchers in _SELECTOR.findall(filled):
        own = [each for each in _MATCHER.findall(matchers) if each[0] not in _OF_PROMETHEUS]
        yield name, own


def fits(sample: Sample, matchers: list[tuple[str, str, str]]) -> bool:
    for label, operator, value in matchers:
        found = sample.labels.get(label, "")
        is_it = re.fullmatch(value, found) is not None if "~" in operator else found == value
        if is_it == operator.startswith("!"):
            return False
    return True


async def test_every_query_of_a_panel_has_series_on_either_engine(
    engine: str, samples: list[Sample]
) -> None:
    absent = {
        name
        for _, panel in PANELS
        for target in panel["targets"]
        for name, matchers in selectors(target["expr"])
        if not any(each.name == name and fits(each, matchers) for each in samples)
    }
    assert absent == ABSENT[engine]


def test_a_panel_says_what_it_means_that_it_is_empty_on_an_engine() -> None:
    silent = [
        (title, engine)
        for title, panel in PANELS
        for engine, absent in ABSENT.items()
        if all(
            absent & {name for name, _ in selectors(target["expr"])} for target in panel["targets"]
        )
        and not panel["fieldConfig"]["defaults"].get("noValue")
    ]
    assert silent == []
