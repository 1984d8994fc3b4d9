"""Two relays that share a store, scraped by a real Prometheus: operators see the figures of one."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from deploy.grafana import delivery, engagement, queries
from tests.app.cluster import settings
from tests.caller import post
from tests.deploy import dashboards
from tests.deploy.prometheus import RULES, Prometheus, require_prometheus
from tests.guarantees.process import until
from tests.operator import operating
from tests.service import Relay, serving
from tests.store.places import PostgresPlace
from tests.stub_server import StubServer

SCRAPES = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: relay
    file_sd_configs: [{{files: [{targets}], refresh_interval: 1s}}]
"""
LEADS = 3
EXPRESSIONS = {
    "pending": (f"sum by (sink) ({delivery.PENDING})", LEADS),
    "dead letters": (f"sum by (sink) ({delivery.DEAD})", 0),
    "leads": ("max without (instance) (relay_leads_captured_total)", LEADS),
    "leads of ten minutes": (queries.grown(engagement.LEADS), LEADS),
    "losses": ("max without (instance) (relay_unacknowledged_loss_seconds)", 0),
    "away": ('max without (instance) (relay_members{state="away"})', 0),
    "without an owner": ("max without (instance) (relay_sinks_without_owner)", 0),
}
"""Queries of dashboards and rules, and what they return as long as no more leads come."""


class Watch:
    """A Prometheus that scrapes some relays."""

    def __init__(self, prometheus: Prometheus, targets: Path) -> None:
        self._prometheus = prometheus
        self._targets = targets

    def scrape(self, *relays: Relay) -> None:
        hosts = [relay.service.admin.url.removeprefix("http://") for relay in relays]
        fresh = self._targets.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": hosts}]))
        fresh.rename(self._targets)

    async def ask(self, query: str) -> Sequence[float]:
        """Return the values now; in a thread, because the relays run in this one."""
        return sorted((await asyncio.to_thread(self._prometheus.ask, _filled(query))).values())

    async def until(self, query: str, *values: float) -> None:
        async def is_so() -> bool:
            return await self.ask(query) == sorted(values)

        await until(is_so, what=f"{values} of {query}")

    async def seen(self, query: str, *, from_s: float) -> set[float]:
        """Return all values that a panel shows from a time until now."""
        found = await asyncio.to_thread(
            self._prometheus.ask_range, _filled(query), from_s=from_s, to_s=time.time(), step_s=1
        )
        return {value for values in found.values() for _, value in values}


def _filled(query: str) -> str:
    return dashboards.filled(queries.expanded(query), range_s=600, step_s=60)


def leads(number: int) -> Sequence[bytes]:
    return [
        post(orjson.dumps({"id": f"e{each}", "event": "lead.captured", "data": {}}))
        for each in range(number)
    ]


@pytest.mark.long
async def test_relays_that_join_and_leave_change_no_figure(
    tmp_path: Path, postgres_place: PostgresPlace
) -> None:
    require_prometheus()
    targets, config = tmp_path / "targets.json", tmp_path / "prometheus.yml"
    config.write_text(SCRAPES.format(rules=RULES, targets=targets))
    targets.write_text("[]")
    async with StubServer() as destination:
        a, b, c = (settings(tmp_path / name, postgres_place, destination) for name in "abc")
        with Prometheus(data=tmp_path / "data", config=config) as prometheus:
            watch = Watch(prometheus, targets)
            async with serving(a) as first:
                async with operating(first) as operator:
                    await operator.post("/sinks/sales/pause")
                async with serving(b) as second:
                    watch.scrape(first, second)
                    await watch.until('relay_members{state="live"}', 2, 2)
                    for number, request in enumerate(leads(LEADS)):
                        relay = (first, second)[number % 2]
                        assert (await relay.ask(request)).status == 202
                    # Both have the same, although each took only some of the leads.
                    await watch.until("relay_leads_captured_total", LEADS, LEADS)
                    await watch.until("relay_pending_deliveries", LEADS, LEADS)
                    for query, value in EXPRESSIONS.values():
                        await watch.until(query, value)
                    from_s = time.time()
                watch.scrape(first)
                await watch.until('relay_members{state="live"}', 1)
                async with serving(c) as third:
                    watch.scrape(first, third)
                    await watch.until('relay_members{state="live"}', 2, 2)
                    await watch.until("relay_leads_captured_total", LEADS, LEADS)
                    await watch.until('relay_sink_state{state="paused"}', 1)
                    for query, value in EXPRESSIONS.values():
                        assert await watch.seen(query, from_s=from_s) == {value}, query
                    owners = 'sum(relay_sink_state{state="paused"})'
                    assert await watch.seen(owners, from_s=from_s) == {1}
                    assert await watch.ask('ALERTS{alertstate="firing"}') == []
