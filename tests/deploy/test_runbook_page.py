"""The runbook as a page: made of docs/runbook.md, served by Prometheus, linked from Grafana."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana.relay import RUNBOOK as ADDRESS
from deploy.prometheus.runbook import SOURCE, TARGET, TEMPLATE, page, template
from tests.deploy import dashboards
from tests.deploy.prometheus import Prometheus, require_prometheus, rules
from tests.deploy.test_prometheus import config
from tests.ports import free_port

PAGE = TARGET.read_text(encoding="utf-8")
ANCHORS = set(re.findall(r'id="([^"]+)"', PAGE))
NAMES = {rule["alert"] for rule in rules("alert")}
COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"


def test_the_page_is_rendered_from_the_runbook() -> None:
    assert page(SOURCE.read_text(encoding="utf-8")) == PAGE, (
        "run: python -m deploy.prometheus.runbook"
    )


def test_the_operators_page_has_the_same_text() -> None:
    assert template(SOURCE.read_text(encoding="utf-8")) == TEMPLATE.read_text(encoding="utf-8"), (
        "run: python -m deploy.prometheus.runbook"
    )


def test_every_alert_has_an_anchor_in_both_spellings() -> None:
    assert {name.lower() for name in NAMES} | NAMES <= ANCHORS


def test_every_link_stays_within_the_page() -> None:
    links = re.findall(r'href="([^"]+)"', PAGE)
    assert {link.removeprefix("#") for link in links} <= ANCHORS
    assert len(links) > len(NAMES)


def test_tables_code_and_names_are_on_the_page() -> None:
    assert "<td>74</td>" in PAGE
    assert "<code>store.broken</code>" in PAGE
    assert 'class="language-promql"' in PAGE
    assert "docs/rotation.md" in PAGE


def test_an_alert_of_a_real_prometheus_leads_to_its_section(tmp_path: Path) -> None:
    require_prometheus()
    file = config(tmp_path, f"127.0.0.1:{free_port()}")
    with Prometheus(data=tmp_path / "data", config=file) as server:
        alerts: list[dict[str, Any]] = []

        def come() -> bool:
            alerts[:] = server.get("/alerts")["alerts"]
            return bool(alerts)

        server.until(come, what="an alert of a relay that does not run")
        address, _, section = alerts[0]["annotations"]["runbook_url"].partition("#")
        answer = httpx.get(address, trust_env=False)
    assert (alerts[0]["labels"]["alertname"], section) == ("RelayDown", "relaydown")
    assert answer.text == PAGE
    assert answer.headers["content-type"].startswith("text/html")


def test_compose_serves_the_page_at_the_dashboards_address() -> None:
    compose = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["prometheus"]
    flags = dict(each.removeprefix("--").split("=") for each in service["command"])
    mounts = {place: here for here, place in (each.split(":")[:2] for each in service["volumes"])}
    place, _, folder = flags["web.user-assets"].rpartition("/")
    assert (COMPOSE / mounts[place] / folder).resolve() == TARGET.parent
    assert f"{flags['web.external-url']}user/{TARGET.name}" == ADDRESS
    host, port, _ = service["ports"][0].split(":")
    assert flags["web.external-url"] == f"http://{host}:{port}/"


def test_the_dashboard_keeps_the_address_in_one_place() -> None:
    variable = dashboards.variable(dashboards.read("relay"), "runbook")
    assert (variable["type"], variable["query"]) == ("constant", ADDRESS)
    assert str(dashboards.read("relay")).count(ADDRESS) == 1


def test_every_alert_is_linked_from_a_panel_that_shows_its_cause() -> None:
    panels = dashboards.panels(dashboards.read("relay"))
    links = [link for panel in panels for link in panel.get("links", [])]
    assert all(link["targetBlank"] for link in links)
    assert {link["url"] for link in links} == {f"${{runbook:raw}}#{name.lower()}" for name in NAMES}


def test_a_click_on_an_alert_leads_to_its_section() -> None:
    panel = dashboards.panel("relay", "Alerts")
    (link,) = panel["fieldConfig"]["defaults"]["links"]
    assert link["url"] == "${runbook:raw}#${__field.labels.alertname}"
    assert "alertname" in panel["targets"][0]["legendFormat"]


@pytest.mark.parametrize("document", ["deployment.md", "dashboards.md"])
def test_a_document_names_the_pages_address(document: str) -> None:
    text = (SOURCE.parent / document).read_text(encoding="utf-8")
    assert "user/runbook.html" in text
