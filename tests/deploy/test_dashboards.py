"""The shipped dashboards: made by their code, filling the screen, and with data in every panel."""

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from deploy.grafana import receiving
from deploy.grafana.document import DOCUMENT, renewed
from deploy.grafana.files import DASHBOARDS, text
from relay.core.event import KINDS
from relay.telemetry.metrics import Metrics
from tests.deploy import dashboard_linter, fortnight, story, viewer
from tests.deploy.prometheus import Prometheus

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
PANELS = [(name, each) for name in viewer.NAMES for each in viewer.panels(viewer.read(name))]
IDS = [f"{name}: {panel['title']}" for name, panel in PANELS]

OF_PROMETHEUS = {"up", "ALERTS"}
"""What Prometheus itself knows about the relay."""

SHOWN: dict[str, tuple[int, int]] = {
    "engagement": (fortnight.FIRST_S, fortnight.VIEWED_S),
    "relay": (story.START_S, story.END_S),
}
"""What each is looked at for: the default time of the one, the whole scripted day of the other."""


@pytest.fixture(scope="module")
def server(
    scripted_day: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("fortnight") / "data"
    fortnight.write(folder, scripted_day)
    with Prometheus(data=folder) as running:
        yield running


def exposed() -> set[str]:
    """Every name that the relay's /metrics has."""
    metrics = Metrics(story.SOURCES, story.SINKS, sqlite="3.51.2")
    metrics.show_secrets("main", ["1"])
    return set(re.findall(r"^(\w+)[ {]", metrics.exposition("")[0].decode(), re.MULTILINE))


def named(name: str) -> set[str]:
    """Every metric that a dashboard asks for, in panels, variables and annotations."""
    board = viewer.read(name)
    texts = [target["expr"] for panel in viewer.panels(board) for target in panel["targets"]]
    texts += [each["expr"] for each in board["annotations"].get("list", [])]
    for variable in board["templating"]["list"]:
        texts += re.findall(r"label_values\((.+), \w+\)", str(variable["query"]))
    parts = (
        part
        for each in texts
        for part in dashboard_linter.parts(promql.parse(dashboard_linter.outside_of_strings(each)))
    )
    return {part.name or "" for part in parts if isinstance(part, promql.VectorSelector)}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_shipped_dashboard_is_what_its_code_makes(name: str) -> None:
    assert DASHBOARDS[name].read_text(encoding="utf-8") == text(name), (
        "run: python -m deploy.grafana"
    )


def test_the_document_has_every_panel_with_its_description() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    boards = {name: viewer.read(name) for name in viewer.NAMES}
    assert document == renewed(document, boards), "run: python -m deploy.grafana"
    for name, panel in PANELS:
        table = document.partition(f"<!-- {name} -->")[2].partition("<!-- end of")[0]
        assert f"| {panel['title']} | {panel['description']} |" in table


@pytest.mark.parametrize("name", viewer.NAMES)
def test_the_picture_was_drawn_of_the_panels_that_there_are(name: str) -> None:
    picture = (DOCUMENT.parent / "images" / f"{name}.png").read_bytes()
    titles = "; ".join(panel["title"] for panel in viewer.panels(viewer.read(name)))
    assert b"tEXtpanels\0" + titles.encode() in picture, "run: python -m tests.deploy.drawing"
    assert len(picture) < 300_000


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=IDS)
def test_every_query_of_a_panel_returns_data(
    server: Prometheus, name: str, panel: viewer.Panel
) -> None:
    from_s, to_s = SHOWN[name]
    asked = [*viewer.asks(panel, from_s=from_s, to_s=to_s)]
    assert asked
    for each in asked:
        values = [value for found in each.answer(server).values() for _, value in found]
        assert any(map(math.isfinite, values)), each.expr


@pytest.mark.parametrize("name", viewer.NAMES)
def test_every_metric_that_is_asked_for_exists(name: str) -> None:
    assert named(name) - exposed() - OF_PROMETHEUS == set()


def test_every_metric_of_the_relay_is_shown() -> None:
    shown = set().union(*map(named, viewer.NAMES))
    families = {re.sub(r"_(bucket|count|sum)$", "", each) for each in exposed()}
    shown = {re.sub(r"_(bucket|count|sum)$", "", each) for each in shown}
    assert {each for each in families if each.startswith("relay_")} - shown == set()


def test_every_kind_of_event_has_a_colour_of_its_own() -> None:
    assert receiving.KINDS.keys() == {*KINDS, "other"}
    assert len({*receiving.KINDS.values()}) == len(receiving.KINDS)


@pytest.mark.parametrize("name", viewer.NAMES)
def test_the_panels_fill_the_screens_width_and_lie_on_nothing(name: str) -> None:
    places = [panel["gridPos"] for panel in viewer.read(name)["panels"]]
    squares = [
        (place["x"] + x, place["y"] + y)
        for place in places
        for x, y in itertools.product(range(place["w"]), range(place["h"]))
    ]
    height = 1 + max(y for _, y in squares)
    assert sorted(squares) == sorted(itertools.product(range(24), range(height)))


@pytest.mark.parametrize("name", viewer.NAMES)
def test_no_two_panels_have_one_title_or_one_number(name: str) -> None:
    board = viewer.read(name)
    numbers = [panel["id"] for panel in board["panels"]]
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "stat"]
    assert len({*numbers}) == len(numbers)
    assert len({*titles}) == len(titles)


def test_the_dashboards_lead_to_one_another() -> None:
    boards = {f"/d/{board['uid']}": board for board in map(viewer.read, viewer.NAMES)}
    assert boards.keys() == {"/d/relay-engagement", "/d/relay-operations"}
    for url, board in boards.items():
        assert {link["url"] for link in board["links"]} == boards.keys() - {url}


def test_a_query_is_answered_for_the_sources_and_sinks_that_are_chosen(
    server: Prometheus,
) -> None:
    (panel,) = [each for name, each in PANELS if (name, each["title"]) == ("relay", "Waiting")]
    (asked,) = viewer.asks(panel, from_s=story.START_S, to_s=story.END_S)
    crm = viewer.Asked(
        expr=asked.expr.replace('sink=~".+"', 'sink=~"crm"'),
        legend=asked.legend,
        from_s=asked.from_s,
        to_s=asked.to_s,
        step_s=asked.step_s,
    )
    assert [crm.name(labels) for labels in crm.answer(server)] == ["crm"]
    assert len(asked.answer(server)) == len(story.SINKS)


def provisioned(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / path).read_text())
    return document


def test_the_provisioned_data_source_is_one_that_the_dashboards_offer() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    kinds = {
        variable["query"]
        for board in map(viewer.read, viewer.NAMES)
        for variable in board["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert kinds == {source["type"]}
    assert source["isDefault"]


def test_grafana_reckons_with_the_interval_that_prometheus_scrapes_at() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    scraping = yaml.safe_load((GRAFANA.parent / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]


def test_the_document_installs_what_is_there_to_where_grafana_looks() -> None:
    document = (GRAFANA.parents[1] / "docs" / "deployment.md").read_text(encoding="utf-8")
    section = document.partition("### Grafana\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"(?<![\w./])deploy/grafana/[\w./*-]+", section))
    assert len(named) >= 4
    assert [each for each in named if not [*GRAFANA.parents[1].glob(each)]] == []
    (provider,) = provisioned("dashboards/relay.yml")["providers"]
    assert f"-t {provider['options']['path']} " in section


def test_compose_mounts_what_grafana_looks_for() -> None:
    compose = yaml.safe_load((GRAFANA.parent / "compose" / "compose.yaml").read_text())
    mounts = dict(each.split(":")[:2] for each in compose["services"]["grafana"]["volumes"])
    (provider,) = provisioned("dashboards/relay.yml")["providers"]
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert compose["services"].keys() >= {"prometheus"}
