"""A relay that is killed and away for seconds gets back what that cost, by the real commands.

All time limits are scaled down by FACTOR: the sandbox's by its speed, the relay's by its config,
and the length of an absence that loses events at its start.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

from relay.core.clock import SystemClock
from relay.core.delivery_rules import GIVE_UP_S, WAITS_S
from relay.sandbox.truth import truth
from tests.cli.sender import Developer
from tests.guarantees.process import Relay, until
from tests.operator import ADMIN
from tests.sandbox.service import Served, serving
from tests.stub_server import StubServer

pytestmark = pytest.mark.servers

FACTOR = 200
WINDOW_S = sum(WAITS_S) / FACTOR
AWAY_S = 3 * WINDOW_S

SCALED = f"""
from relay.core import delivery_rules
delivery_rules.WINDOW_S = {WINDOW_S}
delivery_rules.WINDOW_MS = {round(1000 * WINDOW_S)}
"""
PATIENCE = f'give_up_after = "{round(1000 * GIVE_UP_S / FACTOR)}ms"\n'
SINK = '[[sink]]\nname = "crm"\ntype = "http"\nurl = "{url}"\nreconstructed = true\n'

Fact = tuple[str, ...]


def received_facts(crm: StubServer) -> Counter[Fact]:
    """Facts that the sink received about viewers, with their number of events."""
    bodies = {(body := orjson.loads(each.body))["id"]: body for each in crm.requests if each.body}
    facts: Counter[Fact] = Counter()
    for body in bodies.values():
        data = body["data"]
        if body["event"] == "video.watched":
            facts[data["viewer"]["email"], data["video"]["id"], data["milestone"]] += 1
        elif body["event"] == "lead.captured":
            facts["lead", data["id"]] += 1
    return facts


def actual_facts(served: Served) -> set[Fact]:
    found = truth(served.sandbox.workspace)
    milestones: set[Fact] = {(row.email, row.video.id, row.milestone) for row in found.milestones}
    return milestones | {("lead", row.lead.id) for row in found.leads}


def open_views(served: Served) -> set[tuple[str, str]]:
    """Viewers and videos of the views that are not over, which a report leaves for the next run."""
    sessions = served.sandbox.workspace.sessions.values()
    return {(each.email, each.video) for each in sessions if each.ended_ms is None and each.email}


async def command(relay: Relay, *arguments: str, code: int = 0) -> str:
    """Run a command as an operator does, and return what it prints."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "relay", *arguments, "--config", str(relay.config)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


async def wait_real_time(seconds: float) -> None:
    """Wait for real time, in which the sandbox goes on."""
    end_s = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= end_s, what="the time")


async def is_settled(relay: Relay) -> bool:
    return await relay.metric("relay_pending_deliveries") == 0


@pytest.mark.long
async def test_events_that_a_killed_relay_missed_are_reconstructed(tmp_path: Path) -> None:
    scaled = tmp_path / "scaled"
    scaled.mkdir()
    (scaled / "sitecustomize.py").write_text(SCALED, encoding="utf-8")
    async with StubServer() as crm, serving(clock=SystemClock(), speed=FACTOR) as served:
        developer = Developer(tmp_path, served)
        relay = Relay(
            tmp_path,
            sinks=SINK.format(url=crm.url("/crm")),
            secret=f"file:{developer.secret}",
            environ={"PYTHONPATH": str(scaled)},
        )
        tables = relay.config.read_text(encoding="utf-8").split("[[sink]]")
        endpoint = await developer.register(relay.url)
        relay.config.write_text(
            f"{tables[0]}{developer.api(endpoint)}{PATIENCE}{ADMIN}\n[[sink]]{tables[1]}",
            encoding="utf-8",
        )
        async with relay:
            await relay.start()
            served.sandbox.populate(viewers=400, videos=6)
            await until(lambda: len(received_facts(crm)) > 50, what="events at the sink")
            await relay.kill()
            before = len(actual_facts(served))
            await wait_real_time(AWAY_S)
            await until(lambda: len(actual_facts(served)) > before + 20, what="views meanwhile")
            await relay.start()
            asked = "relay reconcile --source main"
            assert asked in await command(relay, "status", code=1)
            await wait_real_time(2 * GIVE_UP_S / FACTOR)
            served.sandbox.schedule.stop()
            await served.sandbox.schedule.settle()
            lost = actual_facts(served) - received_facts(crm).keys()
            assert lost

            printed = await command(relay, "reconcile")
            assert "reconstructed" in printed
            await until(lambda: is_settled(relay), what="deliveries")
            facts = received_facts(crm)
            assert facts.keys() <= actual_facts(served)
            assert max(facts.values()) == 1
            left = actual_facts(served) - facts.keys()
            assert {fact[:2] for fact in left} <= open_views(served)
            assert not left or "left for the next run" in printed
            assert await relay.metric("relay_reconstructed_events_total") > 0
            assert "0 events reconstructed" in await command(relay, "reconcile", "--since", "1h")
