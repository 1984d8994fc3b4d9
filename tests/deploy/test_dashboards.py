"""The shipped dashboards: made by their code, filling the screen, and with data in every panel."""

import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana import receiving
from deploy.grafana.boards import DASHBOARDS, DOCUMENT, text
from relay.core.event import KINDS
from relay.telemetry.metrics import Metrics
from tests.deploy import dashboards, fortnight, incidents
from tests.deploy.prometheus import Prometheus

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
PANELS = [
    (name, panel) for name in dashboards.NAMES for panel in dashboards.panels(dashboards.read(name))
]
IDS = [f"{name}: {panel['title']}" for name, panel in PANELS]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_generated_from_its_code_and_its_document(name: str) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert DASHBOARDS[name].read_text(encoding="utf-8") == text(name, document), (
        "run: python -m deploy.grafana"
    )


def test_a_description_without_its_panel_is_refused() -> None:
    document = DOCUMENT.read_text(encoding="utf-8").replace("| Memory |", "| Memories |")
    with pytest.raises(ValueError, match=r"dashboards\.md: the table of relay"):
        text("relay", document)


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_the_picture_was_drawn_from_the_current_panels(name: str) -> None:
    picture = (DOCUMENT.parent / "images" / f"{name}.png").read_bytes()
    titles = "; ".join(panel["title"] for panel in dashboards.panels(dashboards.read(name)))
    assert b"tEXtpanels\0" + titles.encode() in picture, "run: python -m tests.deploy.pictures"
    assert len(picture) < 300_000


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=IDS)
def test_every_query_of_a_panel_returns_data(
    two_weeks: Prometheus, name: str, panel: dashboards.Panel
) -> None:
    from_s, to_s = fortnight.SHOWN[name]
    asked = [*dashboards.asks(panel, from_s=from_s, to_s=to_s)]
    assert asked
    for each in asked:
        values = [value for found in each.answer(two_weeks).values() for _, value in found]
        assert any(map(math.isfinite, values)), each.expr


def test_every_metric_of_the_relay_is_shown() -> None:
    exposition = Metrics(incidents.SOURCES, incidents.SINKS).exposition("")[0].decode()
    families = set(re.findall(r"^# TYPE (relay_\w+)", exposition, re.MULTILINE))
    boards = "".join(file.read_text(encoding="utf-8") for file in DASHBOARDS.values())
    assert {name for name in families if name not in boards} == set()


def test_every_kind_of_event_has_a_colour_of_its_own() -> None:
    assert receiving.KINDS.keys() == {*KINDS, "other"}
    assert len({*receiving.KINDS.values()}) == len(receiving.KINDS)


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_the_panels_tile_the_screen(name: str) -> None:
    places = [panel["gridPos"] for panel in dashboards.read(name)["panels"]]
    squares = [
        (place["x"] + x, place["y"] + y)
        for place in places
        for x, y in itertools.product(range(place["w"]), range(place["h"]))
    ]
    height = 1 + max(y for _, y in squares)
    assert sorted(squares) == sorted(itertools.product(range(24), range(height)))


@pytest.mark.parametrize("name", dashboards.NAMES)
def test_titles_and_numbers_of_panels_are_unique(name: str) -> None:
    board = dashboards.read(name)
    numbers = [panel["id"] for panel in board["panels"]]
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "stat"]
    assert len({*numbers}) == len(numbers)
    assert len({*titles}) == len(titles)


def test_the_dashboards_link_to_one_another() -> None:
    boards = {f"/d/{board['uid']}": board for board in map(dashboards.read, dashboards.NAMES)}
    assert boards.keys() == {"/d/relay-engagement", "/d/relay-operations"}
    for url, board in boards.items():
        assert {link["url"] for link in board["links"]} == boards.keys() - {url}


def provisioned(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / path).read_text())
    return document


def test_the_dashboards_offer_the_provisioned_data_source() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    kinds = {
        variable["query"]
        for board in map(dashboards.read, dashboards.NAMES)
        for variable in board["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert kinds == {source["type"]}
    assert source["isDefault"]


def test_grafana_knows_the_scrape_interval_of_prometheus() -> None:
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    scraping = yaml.safe_load((GRAFANA.parent / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraping["global"]["scrape_interval"]


def test_the_documented_install_copies_existing_files_into_the_provisioned_folder() -> None:
    document = (GRAFANA.parents[1] / "docs" / "deployment.md").read_text(encoding="utf-8")
    section = document.partition("### Grafana\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"(?<![\w./])deploy/grafana/[\w./*-]+", section))
    assert len(named) >= 4
    assert [each for each in named if not [*GRAFANA.parents[1].glob(each)]] == []
    (provider,) = provisioned("dashboards/relay.yml")["providers"]
    assert f"-t {provider['options']['path']} " in section
