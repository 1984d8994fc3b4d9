"""An outage of three hours: what the relay says of it, gives back, and does by itself."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from relay.core import signature
from relay.store.ownership import MAINTENANCE
from tests.guarantees.process import http_client
from tests.reconciliation.simulation import GIVEN_UP_MS, RunningRelay, World, world
from tests.store.places import PostgresPlace
from tests.stub_server import until

pytestmark = pytest.mark.long

COMMAND = "relay reconcile --source main"


async def after_an_outage(one: World) -> None:
    """Let the relay be there for a day, and away for three hours."""
    async with one.relay() as relay:
        await one.step_hours(24)
        await relay.settled()
    await one.step_hours(3)


@pytest.fixture
async def away(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, viewers=60) as one:
        await after_an_outage(one)
        yield one


async def test_an_outage_names_the_command_until_it_was_asked_for(away: World) -> None:
    async with away.relay() as relay:
        await until(lambda: b"reconciliation.needed" in away.errors.getvalue(), what="the line")
        assert COMMAND in away.errors.getvalue().decode()
        assert COMMAND in await relay.commands()
        assert await relay.metric("relay_unreconciled_loss_seconds")
        early = await relay.reconcile()
        assert COMMAND in await relay.commands()
        await away.step(GIVEN_UP_MS)
        late = await relay.reconcile()
        assert late["until_ms"] > early["until_ms"]
        assert COMMAND not in await relay.commands()
        assert await relay.metric("relay_unreconciled_loss_seconds") == []


async def test_with_reconcile_off_an_outage_is_not_mentioned(away: World) -> None:
    away.reconcile = "off"
    async with away.relay() as relay:
        assert await relay.service._store.absences.unreconciled("main")
        await relay.service.reconciler._refresh()
        assert COMMAND not in await relay.commands()
        assert await relay.metric("relay_unreconciled_loss_seconds") == []
        assert b"reconciliation.needed" not in away.errors.getvalue()


async def test_a_dry_run_changes_nothing(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        await relay.settled()
        before = away.facts()
        trial = await relay.reconcile(dry_run=True)
        assert sum(trial["report"]["events"].values()) > 10
        assert COMMAND in await relay.commands()
        run = await relay.reconcile()
        await relay.settled()
        assert run["report"] == trial["report"]
        assert (away.facts() - before).total() == sum(run["report"]["events"].values())


async def test_a_second_run_makes_nothing_again(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        first = await relay.reconcile()
        again = await relay.reconcile(since_ms=first["since_ms"])
        assert again["report"]["events"] == {}
        answer = await relay.admin.post("/api/v1/reconciliations", json={})
        assert answer.status_code == 409
        assert "Nothing to reconcile" in answer.json()["detail"]


async def test_reconstructed_events_are_marked_and_go_to_no_other_sink(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        await relay.settled()
        plain = away.facts("plain")
        run = await relay.reconcile()
        await relay.settled()
        assert away.facts("plain") == plain
        made = [
            request
            for request in away.destination.requests
            if request.header.get("relay-reconstructed") == "true"
        ]
        assert len(made) == sum(run["report"]["events"].values())
        assert all(orjson.loads(request.body)["reconstructed"] is True for request in made)
        series = await relay.metric("relay_reconstructed_events_total")
        assert sum(float(line.rpartition(" ")[2]) for line in series) == len(made)
        listed = (await relay.get("/api/v1/events?limit=5"))["events"]
        assert all(event["reconstructed"] for event in listed)


async def test_a_late_original_goes_to_the_other_sinks(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        await relay.reconcile()
        await relay.settled()
        made = next(body for body in away.received() if "reconstructed" in body)
        original = made | {"id": "evt_late"}
        del original["reconstructed"]
        body = orjson.dumps(original)
        header = signature.header(
            away.secret.encode(), now_s=away.clock.now_ms() // 1000, body=body
        )
        crm = len(away.received())
        async with http_client() as sender:
            answer = await sender.post(
                f"{relay.service.public.url}/webhooks",
                content=body,
                headers={"service-signature": header},
            )
        assert answer.status_code == 202
        await until(
            lambda: any(each["id"] == "evt_late" for each in away.received("plain")),
            what="the original at the other sink",
        )
        await relay.settled()
        assert len(away.received()) == crm
        (found,) = (await relay.get(f"/api/v1/events/find?beginning={made['id']}"))["events"]
        assert found["superseded"]


async def test_an_erased_person_is_refused_and_counted(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        missing = away.truth() - away.facts().keys()
        erased = next(fact[0] for fact in sorted(missing) if fact[0] != "lead")
        await relay.admin.post("/api/v1/people/erase", json={"email": erased})
        run = await relay.reconcile()
        await relay.settled()
        assert run["report"]["erased"] > 0
        assert all(
            body["data"]["viewer"]["email"] != erased
            for body in away.received()
            if "reconstructed" in body and body["event"] == "video.watched"
        )
        assert all(erased not in line for line in run["words"])


async def test_an_api_that_is_down_ends_a_run_and_is_asked_again(away: World) -> None:
    async with away.relay() as relay:
        await away.step(GIVEN_UP_MS)
        key = away.sandbox.workspace.keys
        revoked = next(each for each in key.values() if each.access == "Read only")
        revoked.revoked_ms = away.clock.now_ms()
        failed = await relay.reconcile()
        assert failed["state"] == "failed"
        assert any("key refused" in line for line in failed["words"])
        revoked.revoked_ms = None
        assert (await relay.reconcile())["state"] == "done"


async def test_auto_reconciles_once_no_event_can_still_arrive(tmp_path: Path) -> None:
    async with world(tmp_path, viewers=60, reconcile="auto") as one:
        await after_an_outage(one)
        async with one.relay() as relay:
            assert not (await relay.get("/api/v1/reconciliations"))["reconciliations"]
            await one.step(GIVEN_UP_MS)
            await has_run(relay)
            await relay.settled()
            assert COMMAND not in await relay.commands()
            (run, *_) = (await relay.get("/api/v1/reconciliations"))["reconciliations"]
            assert sum(run["report"]["events"].values()) > 10


async def test_auto_reconciles_once_where_several_relays_share_the_store(tmp_path: Path) -> None:
    place = PostgresPlace()
    async with world(tmp_path, viewers=60, reconcile="auto", place=place) as one:
        await after_an_outage(one)
        async with one.relay() as first, one.relay(port=0) as second:
            await until(lambda: len(holders(place)) == 1, what="a relay with the maintenance")
            await one.step(GIVEN_UP_MS)
            await has_run(first)
            await first.settled()
            for relay in (first, second):
                assert COMMAND not in await relay.commands()
            (run,) = (await second.get("/api/v1/reconciliations"))["reconciliations"]
            assert sum(run["report"]["events"].values()) > 10
            assert place.rows("SELECT member FROM relay.reconciliations") == holders(place)
        assert max(one.facts().values()) == 1
    place.drop()


def holders(place: PostgresPlace) -> list[tuple[object, ...]]:
    return place.rows(
        "SELECT holder FROM relay.ownership WHERE sink = %s AND holder IS NOT NULL", MAINTENANCE
    )


async def has_run(relay: RunningRelay) -> None:
    async with asyncio.timeout(20):
        while True:
            runs = (await relay.get("/api/v1/reconciliations"))["reconciliations"]
            if runs and runs[0]["state"] == "done":
                return
            await asyncio.sleep(0.02)
