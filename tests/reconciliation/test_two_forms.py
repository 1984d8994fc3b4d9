"""A person submits a form twice for one video around an outage: the lost one is given back."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.reconciliation.simulation import GIVEN_UP_MS, SECOND_MS, World, world

pytestmark = pytest.mark.servers

NO_IDS = ("sessions.submitted.id",)
"""Drops the leads' ids from the API's answers."""

BACK_S = 625
"""End of the outage, after the first form, which the sender has given up by then."""


async def live_before(one: World) -> None:
    """Let the relay know the source since before the outage."""
    async with one.relay() as relay:
        one.submit()
        await one.step_hours(5)
        await relay.settled()
    await one.step(10 * SECOND_MS)


async def around_an_outage(one: World, again_s: int) -> tuple[str, str, dict[str, Any]]:
    """Return the lead that was lost, the one that was received, and the reconciliation."""
    await live_before(one)
    lost, before_s = one.submit(want="demo"), min(again_s, BACK_S)
    await one.step(before_s * SECOND_MS)
    received = one.submit(want="price") if again_s < BACK_S else ""
    await one.step((BACK_S - before_s) * SECOND_MS)
    async with one.relay() as relay:
        if not received:
            await one.step((again_s - BACK_S) * SECOND_MS)
            received = one.submit(want="price")
        await one.step(GIVEN_UP_MS)
        await relay.settled()
        run = await relay.reconcile()
        await relay.settled()
    return lost, received, run


@pytest.mark.parametrize("again_s", [605, 640, 900])
async def test_the_lost_one_of_two_forms_is_given_back(tmp_path: Path, again_s: int) -> None:
    async with world(tmp_path, viewers=0, videos=2) as one:
        lost, received, run = await around_an_outage(one, again_s)
        live = one.leads("plain")
        assert lost not in live
        assert received in live
        assert one.leads()[lost] == 1
        assert one.leads()[received] == 1
        assert run["report"]["events"]["lead.captured"] == 1


async def test_without_ids_the_form_that_is_nearest_to_no_lead_is_given_back(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, viewers=0, videos=2) as one:
        one.sandbox.services.faults.dropped = NO_IDS
        _, _, run = await around_an_outage(one, 640)
        made = [body for body in one.received() if "reconstructed" in body]
        leads = [body["data"] for body in made if body["event"] == "lead.captured"]
        assert [lead["fields"] for lead in leads] == [{"want": "demo"}]
        assert run["report"]["events"]["lead.captured"] == 1


@pytest.mark.parametrize("first", ["with ids", "without ids"])
async def test_a_lead_is_given_back_by_one_of_two_runs(tmp_path: Path, first: str) -> None:
    async with world(tmp_path, viewers=0, videos=2) as one:
        await live_before(one)
        one.submit(want="demo")
        await one.step(SECOND_MS)
        one.submit(want="price")
        await one.step_hours(1)
        faults = one.sandbox.services.faults
        faults.dropped = NO_IDS if first == "without ids" else ()
        async with one.relay() as relay:
            await one.step(GIVEN_UP_MS)
            run = await relay.reconcile()
            assert run["report"]["events"]["lead.captured"] == 2
            faults.dropped = () if faults.dropped else NO_IDS
            again = await relay.reconcile(since_ms=run["since_ms"])
            assert again["report"]["events"] == {}
            await relay.settled()
        leads = Counter(
            body["data"]["fields"]["want"]
            for body in one.received()
            if body["event"] == "lead.captured" and body["data"]["fields"]
        )
        assert leads == {"demo": 1, "price": 1}
