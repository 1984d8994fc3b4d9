"""A real Prometheus with the shipped config and rules scrapes a real relay."""

import asyncio
import itertools
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay.core import sample_events, signature
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from tests.deploy.prometheus import CONFIG, JOB, RULES, Prometheus, require_prometheus, rules
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import post
from tests.stub_server import StubServer

SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\n'

SOONER = {
    "scrape_interval: 15s": "scrape_interval: 5s",
    "evaluation_interval: 15s": "evaluation_interval: 1s",
}
"""Differences from the shipped config besides the target: shorter intervals."""


def config(folder: Path, target: str) -> Path:
    """Copy the shipped files into a folder with an operator's changes."""
    text = CONFIG.read_text(encoding="utf-8")
    for shipped, ours in {"relay:9464": target, **SOONER}.items():
        assert text.count(shipped) == 1
        text = text.replace(shipped, ours)
    (folder / RULES.name).write_bytes(RULES.read_bytes())
    file = folder / CONFIG.name
    file.write_text(text, encoding="utf-8")
    return file


@asynccontextmanager
async def scraping(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    server = Prometheus(data=folder / "data", config=config(folder, target))
    await asyncio.to_thread(server.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.__exit__)


async def send_a_lead_and_a_view(relay: Relay, number: int) -> None:
    for kind in (LEAD_CAPTURED, VIDEO_WATCHED):
        event = sample_events.event(kind, source="main", event_id=f"evt_{kind}_{number}")
        assert (await post(relay.url, event.body)).status_code == 202


class Watched(NamedTuple):
    server: Prometheus
    leads: int


async def has_recorded(server: Prometheus) -> bool:
    """Whether every recording rule has a value, and the request rate is above 0."""
    found = await asyncio.to_thread(server.ask, 'count by (__name__) ({__name__=~".+:.+:.+"})')
    rate = await asyncio.to_thread(server.ask, "sum(instance_source:relay_requests:rate5m)")
    return len(found) == len(rules("record")) and rate.get((), 0) > 0


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """A Prometheus that has scraped a relay with events received and delivered."""
    require_prometheus()
    folder = tmp_path_factory.mktemp("watched")
    async with (
        StubServer() as destination,
        Relay(folder, sinks=SINK.format(url=destination.url())) as relay,
    ):
        await relay.start()
        async with scraping(folder, f"127.0.0.1:{relay.admin_port}") as server:
            wrong = signature.header(
                b"the secret of a stranger", now_s=int(time.time()), body=b"{}"
            )
            assert (await post(relay.url, b"{}", header=wrong)).status_code == 401
            leads = itertools.count(1)

            async def seen() -> bool:
                await send_a_lead_and_a_view(relay, next(leads))
                await asyncio.sleep(0.2)
                return await has_recorded(server)

            await until(seen, what="a value of every recording rule", deadline_s=90)
            yield Watched(server, next(leads) - 1)


def evaluated(server: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in server.get("/rules")["groups"] for rule in group["rules"]]


async def test_the_relay_is_up_under_its_job(watched: Watched) -> None:
    up = await asyncio.to_thread(watched.server.ask, "up")
    ((labels, value),) = up.items()
    assert (dict(labels)["job"], value) == (JOB, 1)


async def test_all_rules_are_evaluated_without_an_error(watched: Watched) -> None:
    found = await asyncio.to_thread(evaluated, watched.server)
    assert len(found) == len(rules("alert")) + len(rules("record"))
    assert {(rule["health"], rule.get("lastError", "")) for rule in found} == {("ok", "")}


async def test_a_healthy_relay_brings_no_alert(watched: Watched) -> None:
    # One bad signature is a large share of the first minute's requests.
    alerts = 'ALERTS{alertname!="RelaySignatureFailures"}'
    assert await asyncio.to_thread(watched.server.ask, alerts) == {}


async def test_every_lead_that_was_sent_is_counted_and_delivered(watched: Watched) -> None:
    for counter, count in (
        ("relay_leads_captured_total", watched.leads),
        ('relay_deliveries_total{sink="crm",outcome="delivered"}', 2 * watched.leads),
        ('relay_rejected_total{reason="mismatch"}', 1),
    ):

        async def known(counter: str = counter, count: int = count) -> bool:
            found = await asyncio.to_thread(watched.server.ask, f"sum({counter})")
            return found == {(): count}

        await until(known, what=f"{count} in {counter}")


def test_the_documented_config_is_valid(tmp_path: Path) -> None:
    require_prometheus()
    document = CONFIG.parents[2] / "docs" / "deployment.md"
    (block,) = re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", document.read_text(), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(block)
    (tmp_path / "rules.yml").write_bytes(RULES.read_bytes())
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert f"{len(rules('alert')) + len(rules('record'))} rules found" in done.stdout.decode()
    assert f"job_name: {JOB} " in block
