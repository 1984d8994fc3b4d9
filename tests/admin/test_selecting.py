"""Filters, pages and replays of a running relay."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import service
from tests.admin.test_api import body, send, working
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until

EVENTS = 86
SINK = """
[[sink]]
name = "crm"
type = "http"
url = "{url}"
concurrency = {concurrency}

[sink.retry]
first = "100ms"
max = "200ms"
"""


@contextlib.asynccontextmanager
async def delivering(
    folder: Path, destination: StubServer, concurrency: int
) -> AsyncIterator[tuple[Relay, Operator]]:
    sink = SINK.format(url=destination.url("/crm"), concurrency=concurrency)
    settings = service.read(folder, tables=ADMIN + sink)
    async with service.serving(settings) as relay, operating(relay) as operator:
        await send(relay, *(body(f"e{number}") for number in range(EVENTS)))
        await until(lambda: len(destination.requests) == EVENTS, what="all deliveries")
        await relay.until_counted("relay_deliveries_total", "delivered", "crm", value=EVENTS)
        yield relay, operator


async def state(operator: Operator) -> dict[str, Any]:
    (sink,) = (await operator.get("/sinks"))["sinks"]
    return {**sink["condition"], "pending": sink["pending"]}


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_no_delivery_of_a_cancelled_replay_starts(
    tmp_path: Path, concurrency: int, destination: StubServer
) -> None:
    async with delivering(tmp_path, destination, concurrency) as (relay, operator):
        destination.reply = lambda _: Reply(503)
        begun = await operator.post("/replays", {"sink": "crm"})
        assert begun["total"] == EVENTS
        async with asyncio.timeout(20):
            while (await state(operator))["state"] != "throttled":
                await asyncio.sleep(0.01)
        # The next probe finds the rest of the hand behind it.
        seen = len(destination.requests)
        await until(lambda: len(destination.requests) > seen, what="a probe")
        ended = await operator.post(f"/replays/{begun['id']}/cancel")
        assert ended["state"] == "cancelled"
        sent = len(destination.requests)
        destination.reply = lambda _: Reply()
        await send(relay, body("live"))
        await until(lambda: b'"live"' in destination.requests[-1].body, what="the live event")
        async with asyncio.timeout(20):
            while (await state(operator))["pending"]:
                await asyncio.sleep(0.01)
        after = [each for each in destination.requests[sent:] if b'"live"' not in each.body]
        assert len(after) <= ended["under_way"]
        shown = await operator.get(f"/replays/{begun['id']}")
        assert (shown["under_way"], shown["done"]) == (0, shown["opened"])


async def test_paging_neither_loses_nor_repeats_events_of_the_same_time(tmp_path: Path) -> None:
    async with StubServer() as destination, delivering(tmp_path, destination, 8) as (_, operator):
        destination.reply = lambda _: Reply(422)
        await operator.post("/replays", {"all": True})
        async with asyncio.timeout(20):
            while (await operator.get("/sinks"))["sinks"][0]["dead"] < EVENTS:
                await asyncio.sleep(0.01)
        for path, name in (("/events", "events"), ("/dead-letters", "dead_letters")):
            seen: list[str] = []
            query: dict[str, int] = {}
            while True:
                page = await operator.get(path, limit=7, **query)
                seen += [each["id"] for each in page[name]]
                if page["next"] is None:
                    break
                query = {"before": page["next"]}
            assert seen == [f"e{number}" for number in reversed(range(EVENTS))]


async def test_dead_letters_of_one_event_are_on_one_page(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: Reply(422)
        await send(relay, body("a"), body("b"))
        for sink in ("all", "leads"):
            await relay.until_counted("relay_deliveries_total", "dead", sink, value=2)
        page = await operator.get("/dead-letters", limit=1)
        assert [(each["id"], each["sink"]) for each in page["dead_letters"]] == [
            ("b", "all"),
            ("b", "leads"),
        ]
        last = await operator.get("/dead-letters", limit=2, before=page["next"])
        assert ([each["id"] for each in last["dead_letters"]], last["next"]) == (["a", "a"], None)


async def test_a_full_last_page_has_no_next(relay: Relay, operator: Operator) -> None:
    await send(relay, body("a"), body("b"))
    assert (await operator.get("/events", limit=2))["next"] is None
    await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
    for _ in range(3):
        begun = await operator.post("/replays", {"sink": "leads"})
        async with asyncio.timeout(20):
            while (await operator.get(f"/replays/{begun['id']}"))["state"] == "running":
                await asyncio.sleep(0.01)
    first = await operator.get("/replays", limit=2)
    assert [each["id"] for each in first["replays"]] == [3, 2]
    last = await operator.get("/replays", limit=2, before=first["next"])
    assert ([each["id"] for each in last["replays"]], last["next"]) == ([1], None)


async def test_missed_excludes_events_that_no_route_takes(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
        await send(relay, body("lead"), body("video", "video.ready"))
        await relay.until_counted("relay_deliveries_total", "dead", "leads")
        await relay.until_counted("relay_deliveries_total", "delivered", "all", value=2)
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"sink": "leads", "outcome": "missed"}, ["lead"]),
            ({"sink": "leads"}, ["lead"]),
            ({"sink": "all"}, ["video", "lead"]),
            ({"sink": "all", "outcome": "missed"}, []),
            ({"reason": "422"}, ["lead"]),
            ({"reason": "nonsense"}, []),
            ({"reason": "422", "sink": "all"}, []),
        ]
        for query, ids in cases:
            found = await operator.get("/events", **query)
            assert [each["id"] for each in found["events"]] == ids, query
            if ids:
                assert (await operator.post("/replays/count", query))["total"] == len(ids)
            else:
                await operator.post("/replays", query, status=409)


@pytest.mark.parametrize(
    ("path", "filter_", "status", "said"),
    [
        ("/replays", {"sink": "leadz"}, 404, "did you mean leads? Known: all, leads, tests."),
        ("/replays/count", {"source": "mian"}, 404, "did you mean main?"),
        ("/replays", {"kind": "lead.capture"}, 404, "did you mean lead.captured?"),
        ("/replays", {"kind": "nothing.*"}, 404, "Unknown kind of event"),
        ("/dead-letters/discard", {"sink": "x"}, 404, "Unknown sink x"),
        ("/replays", {"outcome": "pending"}, 422, "drop outcome"),
        ("/replays", {"outcome": "missed", "reason": "x"}, 422, "not to missed ones; choose one"),
        (
            "/dead-letters/discard",
            {"outcome": "missed"},
            422,
            "outcome missed does not apply to dead letters",
        ),
        ("/replays", {}, 422, '"all": true'),
        ("/dead-letters/discard", {}, 422, '"all": true'),
        ("/dead-letters/discard", {"dry_run": True}, 422, '"all": true'),
        ("/replays", {"id": "nowhere"}, 409, "Nothing to replay: no stored event matches."),
        ("/replays", {"sink": "tests"}, 409, "no selected event has a delivery to tests"),
    ],
)
async def test_a_filter_with_an_unknown_name_or_a_contradiction_is_refused(
    path: str, filter_: dict[str, Any], status: int, said: str, *, relay: Relay, operator: Operator
) -> None:
    await send(relay, body("a"))
    problem = await operator.post(path, filter_, status=status)
    assert said in problem["detail"]
    assert (await operator.get("/replays"))["replays"] == []


async def test_names_known_only_to_the_store_are_valid(tmp_path: Path) -> None:
    async with StubServer() as destination:
        async with working(tmp_path, destination) as (relay, _):
            await send(relay, body("a", "order.placed"))
            await relay.until_counted("relay_deliveries_total", "delivered", "all")
        async with (
            service.serving(service.read(tmp_path, tables=ADMIN)) as relay,
            operating(relay) as operator,
        ):
            found = await operator.get("/events", sink="all", kind="order.*")
            assert [each["id"] for each in found["events"]] == ["a"]
            problem = await operator.get("/events", sink="leads", status=404)
            assert "Known: all." in problem["detail"]
            why = await operator.post("/replays", {"sink": "all"}, status=409)
            assert why["detail"] == "Nothing to replay: no sink's route takes the selected events."


async def test_an_empty_replay_reports_deliveries_that_are_already_pending(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await operator.post("/sinks/leads/pause")
        await send(relay, body("a"))
        why = await operator.post("/replays", {"sink": "leads"}, status=409)
        assert why["detail"] == "Nothing to replay: the selected deliveries are already pending."
        estimate = await operator.post("/replays/count", {"sink": "leads"})
        assert (estimate["total"], estimate["nothing"]) == (
            0,
            "the selected deliveries are already pending",
        )


async def test_an_empty_replay_reports_bodies_that_are_gone(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await send(relay, body("a", email="ada@example.com"))
        await relay.until_counted("relay_deliveries_total", "delivered", "leads")
        await operator.post("/people/erase", {"email": "ada@example.com"})
        why = await operator.post("/replays", {"sink": "leads"}, status=409)
        assert why["detail"] == (
            "Nothing to replay: the bodies of the selected events have expired or were erased."
        )


async def test_a_dry_run_discards_nothing_and_counts_by_sink_and_reason(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: Reply(422)
        await send(relay, body("a"), body("b", "video.ready"))
        await relay.until_counted("relay_deliveries_total", "dead", "all", value=2)
        await relay.until_counted("relay_deliveries_total", "dead", "leads")
        dry = await operator.post("/dead-letters/discard", {"all": True, "dry_run": True})
        assert dry["discarded"] == 0
        assert [(each["sink"], each["count"]) for each in dry["reasons"]] == [
            ("all", 2),
            ("leads", 1),
        ]
        assert len((await operator.get("/dead-letters"))["dead_letters"]) == 3
        assert (await operator.get("/audit"))["changes"] == []
        assert (await operator.post("/dead-letters/discard", {"all": True}))["discarded"] == 3


async def test_events_are_found_by_id_prefix(relay: Relay, operator: Operator) -> None:
    await send(relay, *(body(f"evt_{number}") for number in range(12)), body("evt_"))
    found = await operator.get("/events/find", beginning="evt_1")
    assert ([each["id"] for each in found["events"]], found["more"]) == (["evt_1"], False)
    found = await operator.get("/events/find", beginning="evt")
    assert (len(found["events"]), found["more"]) == (10, True)
    assert (await operator.get("/events/find", beginning="EVT"))["events"] == []
    assert (await relay.ask(post(b"[]"))).status == 200
