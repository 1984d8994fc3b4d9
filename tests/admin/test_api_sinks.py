"""Operators' actions on a sink's backlog, by the admin API of a running relay."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests import service
from tests.admin.test_api import body, send
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

CRM = service.SINK.format(name="{name}", url="{url}", more='retry = {{ first = "1h" }}')
OTHER = """
[[source]]
name = "other"
path = "/other"
secrets = ["env:RELAY_SECRET"]
"""


@asynccontextmanager
async def working(
    folder: Path, destination: StubServer, *, name: str = "crm", more: str = ""
) -> AsyncIterator[tuple[Relay, Operator]]:
    tables = ADMIN + more + CRM.format(name=name, url=destination.url("/crm"))
    async with (
        service.serving(service.read(folder, tables=tables)) as relay,
        operating(relay) as operator,
    ):
        yield relay, operator


def refuse_for_now(destination: StubServer) -> None:
    destination.reply = lambda _: Reply(500)


async def sinks(operator: Operator) -> dict[str, Any]:
    found = (await operator.get("/sinks"))["sinks"]
    return {each["condition"]["name"]: each for each in found}


async def test_pending_deliveries_are_tried_now_all_or_one(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        refuse_for_now(destination)
        await send(relay, body("a"), body("b"), body("c"))
        await relay.until_counted("relay_attempts_total", "retry", "crm", value=3)
        destination.reply = lambda _: Reply()
        answer = await operator.post("/sinks/crm/retry", {"id": "b"})
        assert answer["brought_forward"] == 1
        assert answer["sink"]["condition"]["name"] == "crm"
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=1)
        assert (await operator.post("/sinks/crm/retry", {}))["brought_forward"] == 2
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=3)
        assert [b'"b"' in each.body for each in destination.requests[3:]] == [True, False, False]
        assert (await operator.post("/sinks/crm/retry", {}))["brought_forward"] == 0
        assert len(relay.lines("sink.retried")) == 3


async def test_one_pending_delivery_is_discarded_and_never_sent_again(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        refuse_for_now(destination)
        await send(relay, body("a"), body("b"))
        await relay.until_counted("relay_attempts_total", "retry", "crm", value=2)
        answer = await operator.post("/sinks/crm/discard", {"id": "a"})
        assert answer == {"source": "main", "id": "a", "in_flight": False}
        (event,) = (await operator.get("/events", id="a"))["events"]
        (delivery,) = event["deliveries"]
        assert delivery["status"] == "discarded"
        assert delivery["reason"].startswith("discarded by an operator after: 500")
        assert (await sinks(operator))["crm"]["pending"] == 1
        destination.reply = lambda _: Reply()
        assert (await operator.post("/sinks/crm/retry", {}))["brought_forward"] == 1
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=1)
        assert len(destination.requests) == 3
        for wrong in ("a", "b", "never there"):
            await operator.post("/sinks/crm/discard", {"id": wrong}, status=404)
        await operator.post("/sinks/nobody/discard", {"id": "a"}, status=404)
        await operator.post("/sinks/nobody/retry", {}, status=404)


async def test_discarding_a_delivery_in_flight_warns(
    tmp_path: Path, destination: StubServer
) -> None:
    async with working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: None
        await send(relay, body("a"))
        await until(lambda: len(destination.requests) == 1, what="the request without an answer")
        answer = await operator.post("/sinks/crm/discard", {"id": "a"})
        assert answer["in_flight"] is True
        assert (await sinks(operator))["crm"]["pending"] == 0
        await destination.stop()  # or the relay's stop would wait for the answer


async def test_an_id_of_two_sources_needs_the_source(
    tmp_path: Path, destination: StubServer
) -> None:
    async with working(tmp_path, destination, more=OTHER) as (relay, operator):
        refuse_for_now(destination)
        await send(relay, body("a"))
        assert (await relay.ask(post(body("a"), target="/other"))).status == 202
        await relay.until_counted("relay_attempts_total", "retry", "crm", value=2)
        for verb in ("retry", "discard"):
            refused = await operator.post(f"/sinks/crm/{verb}", {"id": "a"}, status=409)
            assert refused["detail"] == "several sources sent a: main and other; give the source."
        await operator.post("/sinks/crm/retry", {"source": "main"}, status=409)
        meant = {"id": "a", "source": "other"}
        assert (await operator.post("/sinks/crm/discard", meant))["source"] == "other"
        assert (await sinks(operator))["crm"]["pending"] == 1


async def test_the_backlog_of_a_sink_that_was_renamed_is_listed_and_can_be_discarded(
    tmp_path: Path, destination: StubServer
) -> None:
    async with working(tmp_path, destination) as (relay, operator):
        refuse_for_now(destination)
        await send(relay, body("a"), body("b"))
        await relay.until_counted("relay_attempts_total", "retry", "crm", value=2)
    async with working(tmp_path, destination, name="customers") as (relay, operator):
        found = await sinks(operator)
        assert list(found) == ["customers", "crm"]
        gone = found["crm"]
        assert (gone["condition"]["state"], gone["condition"]["type"]) == (
            "not configured",
            None,
        )
        assert (gone["pending"], gone["dead"]) == (2, 0)
        assert gone["oldest_pending_ms"] is not None
        for event_id in ("a", "b"):
            await operator.post("/sinks/crm/discard", {"id": event_id})
        assert list(await sinks(operator)) == ["customers"]
        await operator.post("/sinks/crm/retry", {}, status=404)
