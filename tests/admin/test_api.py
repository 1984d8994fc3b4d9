"""The admin API on a running relay."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

import relay
from relay.admin.api import stream
from relay.core.delivery import Result
from relay.core.event import Outcome
from tests import service
from tests.caller import post
from tests.guarantees.process import http_client
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer, until


def body(event_id: str, kind: str = "lead.captured", **data: object) -> bytes:
    return orjson.dumps({"id": event_id, "event": kind, "data": data})


@contextlib.asynccontextmanager
async def working(folder: Path, destination: StubServer) -> AsyncIterator[tuple[Relay, Operator]]:
    settings = service.read(folder, tables=ADMIN, destination=destination)
    async with service.serving(settings) as relay, operating(relay) as operator:
        yield relay, operator


async def send(relay: Relay, *bodies: bytes) -> None:
    for each in bodies:
        assert (await relay.ask(post(each))).status == 202


async def test_an_event_is_found_and_shown_with_its_attempts(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await send(relay, body("a", email="ada@example.com"), body("b", "video.ready"))
        await relay.until_counted("relay_deliveries_total", "delivered", "leads")
        found = await operator.get("/events", email="ADA@example.com")
        (event,) = found["events"]
        assert (event["id"], event["source"], event["kind"]) == ("a", "main", "lead.captured")
        assert {each["sink"] for each in event["deliveries"]} == {"all", "leads"}
        shown = await operator.get(f"/events/{event['seq']}")
        assert orjson.loads(shown["body"])["data"] == {"email": "ada@example.com"}
        assert "service-signature" in shown["headers"]
        assert {each["sink"] for each in shown["attempts"]} == {"all", "leads"}
        await operator.get("/events/999", status=404)


async def test_pages_follow_one_another_until_the_last(relay: Relay, operator: Operator) -> None:
    await send(relay, *(body(f"e{number}") for number in range(5)))
    seen: list[str] = []
    before: dict[str, int] = {}
    while True:
        page = await operator.get("/events", limit=2, **before)
        seen += [each["id"] for each in page["events"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    assert seen == ["e4", "e3", "e2", "e1", "e0"]


async def test_a_list_and_a_count_end_in_time_and_say_how_far_they_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: StubServer
) -> None:
    monkeypatch.setattr("relay.store.search.STEP_ROWS", 2)
    async with working(tmp_path, destination) as (relay, operator):
        await send(relay, *(body(f"e{number}") for number in range(5)))
        chosen: dict[str, Any] = {"words": "e0", "within_ms": 0}
        first = await operator.get("/events", **chosen)
        assert (first["events"], first["next"]) == ([], 4)
        assert first["looked_to_ms"] is not None
        assert (await operator.get("/events", id_prefix="e", within_ms=9_000))["next"] is None
        count = await operator.get("/events/count", **chosen)
        assert (count["events"], count["complete"]) == (0, False)
        assert (await operator.get("/events/count", words="e0"))["events"] == 1
        await operator.get("/events/count", within_ms=10_001, status=400)


async def test_a_paused_sink_keeps_its_backlog_over_a_restart(tmp_path: Path) -> None:
    async with StubServer() as destination:
        async with working(tmp_path, destination) as (relay, operator):
            paused = await operator.post("/sinks/leads/pause")
            assert paused["condition"]["state"] == "paused"
            await send(relay, body("a"))
            await until(lambda: len(destination.requests) == 1, what="the other sink's delivery")
            assert (await relay.counts("relay_sink_state"))["leads", "paused"] == 1
        async with working(tmp_path, destination) as (relay, operator):
            sinks = {
                each["condition"]["name"]: each for each in (await operator.get("/sinks"))["sinks"]
            }
            assert (sinks["leads"]["condition"]["state"], sinks["leads"]["pending"]) == (
                "paused",
                1,
            )
            assert len(destination.requests) == 1
            resumed = await operator.post("/sinks/leads/resume")
            assert resumed["condition"]["state"] == "active"
            await until(lambda: len(destination.requests) == 2, what="the delivery that waited")
            assert destination.requests[1].target == "/leads"


async def test_a_sink_is_tested_without_an_event(tmp_path: Path, destination: StubServer) -> None:
    async with working(tmp_path, destination) as (_, operator):
        assert await operator.post("/sinks/all/test") == {
            "reached": True,
            "found": "200 to OPTIONS",
            "reason": None,
            "status": None,
            "result": None,
        }
        destination.reply = lambda _: Reply(404)
        answer = await operator.post("/sinks/all/test")
        assert not answer["reached"]
        assert "nothing is at this URL" in answer["reason"]
        await operator.post("/sinks/nobody/test", status=404)


async def test_dead_letters_are_replayed_once_the_destination_works_again(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda request: Reply(422 if request.target == "/leads" else 200)
        await send(relay, body("a"), body("b"))
        await relay.until_counted("relay_deliveries_total", "dead", "leads", value=2)
        (reason,) = (await operator.get("/dead-letters/reasons"))["reasons"]
        assert (reason["sink"], reason["count"]) == ("leads", 2)
        letters = (await operator.get("/dead-letters"))["dead_letters"]
        assert [each["id"] for each in letters] == ["b", "a"]
        destination.reply = lambda _: Reply()
        chosen = {"outcome": "dead", "sink": "leads"}
        estimate = await operator.post("/replays/count", chosen)
        (share,) = estimate["shares"]
        assert (share["kind"], share["sink"], share["count"]) == ("lead.captured", "leads", 2)
        assert "422" in share["reason"]
        begun = await operator.post("/replays", chosen)
        await relay.until_counted("relay_deliveries_total", "delivered", "leads", value=2)
        assert (await operator.get("/dead-letters"))["dead_letters"] == []
        shown = await operator.get(f"/replays/{begun['id']}")
        assert (shown["total"], shown["opened"]) == (2, 2)
        history = await operator.get(f"/events/{letters[0]['seq']}")
        replayed = [each["replay"] for each in history["attempts"] if each["sink"] == "leads"]
        assert replayed == [None, begun["id"]]


async def test_discarded_dead_letters_are_not_listed(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: Reply(422)
        await send(relay, body("a"), body("b"))
        await relay.until_counted("relay_deliveries_total", "dead", "leads", value=2)
        await relay.until_counted("relay_deliveries_total", "dead", "all", value=2)
        answer = await operator.post("/dead-letters/discard", {"id": "a"})
        assert answer["discarded"] == 2
        letters = (await operator.get("/dead-letters"))["dead_letters"]
        assert {each["id"] for each in letters} == {"b"}


async def test_unreadable_requests_are_listed_with_the_dead_letters(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        assert (await relay.ask(post(b"[]"))).status == 200
        found = await operator.get("/dead-letters")
        assert [each["reason"] for each in found["unreadable"]] == ["the body is not a JSON object"]


@pytest.mark.parametrize(
    ("path", "query", "detail"),
    [
        ("/events", {"colour": "red"}, "colour: unknown parameter"),
        ("/events", {"limit": "0"}, "limit"),
        ("/events", {"limit": "501"}, "limit"),
        ("/events", {"before": "soon"}, "before"),
        ("/events", {"outcome": "lost"}, "outcome"),
        ("/events", {"id": ""}, "id"),
        ("/events", {"words": " \t"}, "words"),
        ("/events", {"person": "ada@example.com"}, "person"),
        ("/events", {"person": "f" * 16}, "person"),
    ],
)
async def test_a_bad_parameter_is_named(
    path: str, query: dict[str, str], detail: str, operator: Operator
) -> None:
    problem = await operator.get(path, status=400, **query)
    assert detail in problem["detail"]
    assert (problem["title"], problem["status"]) == ("Bad Request", 400)


async def test_a_parameter_that_is_given_twice_is_refused(operator: Operator) -> None:
    for path in ("/events?limit=1&limit=2", "/events/1?seq=2"):
        answer = await operator.client.get(f"/api/v1{path}")
        assert answer.status_code == 400
        assert "given twice; give it once." in answer.json()["detail"]


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"colour":1}', "colour: unknown parameter"),
        (b'{"sink":7}', "sink"),
        (b'{"words":" "}', "words"),
        (b'{"words":"\\ud800"}', "not JSON"),
        (b"\xff", "not JSON"),
    ],
)
async def test_a_bad_body_is_refused_with_its_fault(
    content: bytes, detail: str, operator: Operator
) -> None:
    answer = await operator.client.post("/api/v1/replays/count", content=content)
    assert (answer.status_code, answer.headers["content-type"]) == (
        400,
        "application/problem+json",
    )
    assert detail in answer.json()["detail"]


async def test_activity_is_streamed_live(relay: Relay, operator: Operator) -> None:
    async with operator.client.stream("GET", "/api/v1/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert await anext(lines) == ": watching"
        await send(relay, body("a", email="ada@example.com"))
        assert (await relay.ask(post(b"{}", sign=False))).status == 401
        seen: list[dict[str, Any]] = []
        async with asyncio.timeout(5):
            while len(seen) < 4:
                line = await anext(lines)
                if line:
                    seen.append(orjson.loads(line.removeprefix("data: ")))
    assert {each["what"] for each in seen} == {"accepted", "delivered", "refused"}
    (accepted,) = [each for each in seen if each["what"] == "accepted"]
    assert (accepted["id"], accepted["sinks"]) == ("a", ["all", "leads"])
    assert "ada@example.com" not in repr(seen)


async def test_the_document_of_the_stream_names_every_kind() -> None:
    named = {*get_args(Outcome), *get_args(Result)}
    for file in Path(relay.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r'publish\(\s*"(\w+)"', file.read_text(encoding="utf-8")))
        named |= set(re.findall(r'"what": "(\w+)"', file.read_text(encoding="utf-8")))
    assert set(stream.KINDS) == named
    (operation,) = stream.OPERATIONS
    described = (operation.stream or {})["description"]
    assert all(f"`{kind}`" in described for kind in named)


async def test_a_stream_ends_with_the_relay(tmp_path: Path, destination: StubServer) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(http_client())
        async with working(tmp_path, destination) as (relay, operator):
            url = f"{relay.service.admin.url}/api/v1/stream"
            asked = client.stream("GET", url, headers=operator.client.headers)
            lines = (await stack.enter_async_context(asked)).aiter_lines()
            assert await anext(lines) == ": watching"
        async with asyncio.timeout(5):
            assert [line async for line in lines if line] == []


async def test_an_endless_body_is_cut_off(operator: Operator) -> None:
    answer = await operator.client.post("/api/v1/replays/count", content=b" " * 70_000)
    assert answer.status_code == 413
