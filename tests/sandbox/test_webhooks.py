import asyncio

import orjson
import pytest

from relay.core import signature
from relay.core.clock import SystemClock
from relay.core.event import KINDS
from tests.conftest import NOW_MS
from tests.sandbox.service import Served, serving
from tests.stub_server import Reply, Request, StubServer, until

pytestmark = pytest.mark.servers


def verified(request: Request, secret: str, *, now_s: int) -> bool:
    values = [request.header["service-signature"].encode()]
    signature.verify(
        values, request.body, secrets=[secret.encode()], now_s=now_s, tolerance_ms=1000
    )
    return True


async def test_a_request_is_signed_as_documented(served: Served, destination: StubServer) -> None:
    answer = await served.ask(
        "POST", "/v1/webhooks", json={"url": destination.url("/hooks"), "events": []}
    )
    await served.step(60)
    await served.add()
    await served.step(0)
    created, ready = destination.requests
    assert (created.method, created.target) == ("POST", "/hooks")
    assert created.header["user-agent"] == "Service-Webhooks/1"
    assert created.header["content-type"] == "application/json"
    assert verified(ready, answer.json()["secret"], now_s=NOW_MS // 1000 + 60)
    assert orjson.loads(created.body)["createdAt"] == "2026-03-02T09:31:00.000Z"


@pytest.mark.parametrize("code", [404, 500, 301, 302, 199 + 1])
async def test_only_a_2xx_is_final_and_there_are_six_attempts(code: int) -> None:
    async with serving() as served, StubServer() as destination:
        destination.reply = lambda _: Reply(code, b"said", {"location": "/elsewhere"})
        webhook = await served.register(destination.url())
        begun_ms = served.sandbox.schedule.now_ms()
        await served.control("videos", {"title": "A"})
        await served.ask("POST", f"/v1/webhooks/{webhook['id']}/test")
        await served.step(3600)
        attempts = await served.deliveries(webhook["id"])
        times = [each.started_ms - begun_ms for each in served.sandbox.workspace.attempts]
    of_test = [each for each in attempts if each["event"] == "webhook.test"]
    assert {each["status"] for each in attempts} == {code}
    assert {each["response"] for each in attempts} == {"said"}
    if code == 200:
        assert [each["state"] for each in of_test] == ["delivered"]
        return
    assert [each["attempt"] for each in of_test] == [6, 5, 4, 3, 2, 1]
    assert sorted({time // 1000 for time in times}) == [0, 20, 60, 140, 300, 620]
    assert {request.target for request in destination.requests} == {"/"}
    assert served.sandbox.workspace.outbox == []


@pytest.mark.parametrize("speed", [2, 60])
async def test_the_waits_are_divided_by_the_speed_and_the_time_signed_is_real(speed: int) -> None:
    async with serving(speed=speed) as served, StubServer() as destination:
        destination.reply = lambda _: Reply(503)
        created = await served.ask(
            "POST", "/v1/webhooks", json={"url": destination.url(), "events": ["video.ready"]}
        )
        await served.add()
        await served.step(700 / speed)
        times = [attempt.started_ms - NOW_MS for attempt in served.sandbox.workspace.attempts]
    waits = [0, 20, 60, 140, 300, 620]
    assert times == [pytest.approx(wait * 1000 / speed, abs=10) for wait in waits]
    for request, time in zip(destination.requests, times, strict=True):
        now_s = (NOW_MS + time) // 1000
        assert verified(request, created.json()["secret"], now_s=now_s)


async def test_an_endpoint_that_is_away_gets_every_event_once_it_is_back() -> None:
    async with serving() as served, StubServer() as destination:
        url = destination.url()
        await destination.stop()
        webhook = await served.register(url, "video.ready")
        await served.add()
        await served.step(70)
        await destination.listen()
        await served.step(100)
        attempts = await served.deliveries(webhook["id"])
    assert [each["state"] for each in attempts] == ["delivered", "failed", "failed", "failed"]
    assert attempts[-1]["status"] is None
    assert attempts[-1]["response"] == "connection refused"


async def test_an_answer_has_its_time_limit(destination: StubServer) -> None:
    async with serving(clock=SystemClock(), timeout_s=0.2) as served:
        destination.reply = lambda _: None
        webhook = await served.register(destination.url(), "video.ready")
        await served.add()

        async def failed() -> bool:
            attempts = await served.deliveries(webhook["id"])
            return [each["state"] for each in attempts] == ["failed"]

        async with asyncio.timeout(10):
            while not await failed():
                await asyncio.sleep(0.02)
        (attempt,) = await served.deliveries(webhook["id"])
    assert attempt["response"] == "no answer within 0.2 s"
    assert attempt["durationMs"] >= 200


async def test_an_endpoint_gets_the_events_of_its_subscription_and_tests() -> None:
    async with serving() as served, StubServer() as destination:
        webhook = await served.register(destination.url(), "video.deleted")
        await served.add()
        test = await served.ask("POST", f"/v1/webhooks/{webhook['id']}/test")
        assert test.status_code == 202
        changed = await served.ask(
            "PATCH", f"/v1/webhooks/{webhook['id']}", json={"events": ["video.created"]}
        )
        assert changed.json()["webhook"]["events"] == ["video.created"]
        await served.add()
        await served.step(0)
    events = [orjson.loads(request.body) for request in destination.requests]
    assert [event["event"] for event in events] == ["webhook.test", "video.created"]
    assert events[0]["id"] == test.json()["eventId"]
    assert events[0]["data"] == {}


async def test_a_rotated_secret_signs_nothing_any_longer_not_even_a_retry() -> None:
    async with serving() as served, StubServer() as destination:
        destination.reply = lambda _: Reply(503)
        body = {"url": destination.url(), "events": ["video.ready"]}
        created = (await served.ask("POST", "/v1/webhooks", json=body)).json()
        await served.add()
        await served.step(1)
        path = f"/v1/webhooks/{created['webhook']['id']}/rotate-secret"
        rotated = (await served.ask("POST", path)).json()
        await served.step(30)
    first, second = destination.requests
    assert rotated["secret"] != created["secret"]
    assert verified(first, created["secret"], now_s=NOW_MS // 1000)
    assert verified(second, rotated["secret"], now_s=NOW_MS // 1000 + 20)


async def test_the_secret_is_shown_at_creation_and_rotation_only() -> None:
    async with serving() as served, StubServer() as destination:
        body = {"url": destination.url(), "events": []}
        created = (await served.ask("POST", "/v1/webhooks", json=body)).json()
        webhook = created["webhook"]["id"]
        shown = [
            await served.ask("GET", "/v1/webhooks"),
            await served.ask("GET", f"/v1/webhooks/{webhook}"),
            await served.ask("PATCH", f"/v1/webhooks/{webhook}", json={"events": []}),
        ]
    assert [answer.status_code for answer in shown] == [200, 200, 200]
    assert not any(created["secret"] in answer.text for answer in shown)


async def test_the_last_50_attempts_are_listed(served: Served, destination: StubServer) -> None:
    one = await served.register(destination.url("/one"), "video.ready")
    other = await served.register(destination.url("/other"), "video.created")
    for number in range(60):
        await served.add(f"Video {number}")
        await served.step(1)
    counts = [len(await served.deliveries(each["id"])) for each in (one, other)]
    latest = await served.deliveries(one["id"])
    assert counts == [50, 50]
    assert latest[0]["startedAt"] > latest[-1]["startedAt"]
    assert len(destination.requests) == 120


async def test_a_removed_endpoint_gets_nothing_more() -> None:
    async with serving() as served, StubServer() as destination:
        destination.reply = lambda _: Reply(503)
        webhook = await served.register(destination.url(), "video.ready")
        await served.add()
        await served.step(1)
        removed = await served.ask("DELETE", f"/v1/webhooks/{webhook['id']}")
        assert removed.status_code == 204
        await served.step(3600)
        assert len(destination.requests) == 1
        gone = await served.ask("GET", f"/v1/webhooks/{webhook['id']}/deliveries")
        assert gone.status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"url": "ftp://example.com/", "events": []},
        {"url": "nonsense", "events": []},
        {"url": "http://127.0.0.1:1/", "events": ["video.eaten"]},
        {"url": "http://127.0.0.1:1/", "events": "video.ready"},
        {"url": "http://127.0.0.1:1/"},
        {"url": "http://127.0.0.1:1/", "events": [], "secret": "mine"},
    ],
)
async def test_an_unusable_endpoint_is_refused(body: dict[str, object], served: Served) -> None:
    answer = await served.ask("POST", "/v1/webhooks", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid"
    assert (await served.ask("GET", "/v1/webhooks")).json() == {"webhooks": []}


async def test_every_documented_kind_can_be_subscribed(served: Served) -> None:
    webhook = await served.register("http://127.0.0.1:1/", *KINDS, *KINDS)
    assert webhook["events"] == list(KINDS)


async def test_in_real_time_events_are_sent_by_themselves(destination: StubServer) -> None:
    async with serving(clock=SystemClock(), speed=1000) as served:
        await served.register(destination.url())
        await _import(served)
        await until(lambda: len(destination.requests) == 2, what="the events of an import")
    kinds = [orjson.loads(request.body)["event"] for request in destination.requests]
    assert kinds == ["video.created", "video.ready"]


async def _import(served: Served) -> None:
    body = {"url": "https://files.example.com/tour.mp4"}
    assert (await served.ask("POST", "/v1/videos/import", json=body)).status_code == 201
