"""The figures of a running relay: by minute, of attempts, and of acknowledgements."""

from pathlib import Path

from tests import service
from tests.admin.test_api import body, send, working
from tests.admin.test_audience import watched
from tests.caller import post
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import Reply, StubServer


async def test_the_last_hour_survives_a_restart(tmp_path: Path, destination: StubServer) -> None:
    async with working(tmp_path, destination) as (relay, operator):
        await send(relay, body("a"), body("b", "video.ready"))
        await relay.until_counted("relay_attempts_total", "delivered", "all", value=2)
        await relay.until_counted("relay_attempts_total", "delivered", "leads")
        shown = await operator.get("/statistics/minutes")
        assert len(shown["minutes"]) >= 60
        assert sums(shown) == (2, 3, 0)
    async with working(tmp_path, destination) as (relay, operator):
        assert sums(await operator.get("/statistics/minutes")) == (2, 3, 0)
        await send(relay, body("c", "video.ready"))
        await relay.until_counted("relay_attempts_total", "delivered", "all")
        assert sums(await operator.get("/statistics/minutes")) == (3, 4, 0)
        now_ms = shown["minutes"][-1]["at_ms"]
        day = {"since_ms": now_ms - 86_000_000, "until_ms": now_ms + 300_000}
        assert sums(await operator.get("/statistics/minutes", **day)) == (3, 4, 0)
        long = {"since_ms": now_ms - 86_400_001, "until_ms": now_ms}
        await operator.get("/statistics/minutes", status=422, **long)
        await operator.get("/statistics/minutes", status=422, until_ms=1, since_ms=2)


def sums(shown: dict[str, list[dict[str, int]]]) -> tuple[int, ...]:
    names = ("accepted", "delivered", "failed")
    return tuple(sum(each[name] for each in shown["minutes"]) for name in names)


async def test_the_attempts_of_a_sink_are_summed_up(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        destination.reply = lambda _: Reply(400)
        await send(relay, body("a", "video.ready"))
        await relay.until_counted("relay_attempts_total", "dead", "all")
        shown = await operator.get("/sinks/all/attempts")
        (failure,) = shown["failures"]
        assert (failure["status"], failure["count"]) == (400, 1)
        assert failure["reason"].startswith("400: ")
        assert [(each["result"], each["count"]) for each in shown["results"]] == [("dead", 1)]
        assert shown["complete"]
        assert not (await operator.get("/sinks/leads/attempts"))["results"]
        await operator.get("/sinks/nobody/attempts", status=404)


async def test_the_rate_and_the_durations_of_acknowledgements_are_shown(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay, operating(relay) as operator:
        assert await operator.get("/statistics/acceptance") == {
            "last_minute": 0,
            "last_ms": None,
            "median_s": None,
            "p99_s": None,
        }
        await send(relay, body("a"), body("b"))
        shown = await operator.get("/statistics/acceptance")
        assert shown["last_minute"] == 2
        assert 0 < shown["median_s"] <= shown["p99_s"] <= 10
        (event, _) = (await operator.get("/events"))["events"]
    async with service.serving(settings) as relay, operating(relay) as operator:
        shown = await operator.get("/statistics/acceptance")
        assert (shown["last_minute"], shown["last_ms"]) == (2, event["received_ms"])
        assert shown["median_s"] is None


async def test_the_related_events_of_an_event_name_nobody(relay: Relay, operator: Operator) -> None:
    await send(relay, watched("a", "ann@example.com"), watched("b", "Ann@Example.com", "50%"))
    await operator.get("/audience")
    shown = await operator.get("/events/1/related", limit=5)
    (event,) = shown["person"]["events"]
    assert (event["id"], event["milestone"], event["video"]) == ("b", "50%", "vid_1")
    assert shown["video"]["events"] == [event]
    assert (shown["video"]["name"], shown["title"]) == ("vid_1", "Tour")
    assert len(shown["person"]["name"]) == 16
    assert "example.com" not in str(shown)
    await operator.get("/events/99/related", status=404)


async def test_unreadable_requests_are_counted_by_reason(relay: Relay, operator: Operator) -> None:
    for each in (b"[]", b'"words"', b"\xff"):
        assert (await relay.ask(post(each))).status == 200
    shown = (await operator.get("/unreadable/reasons"))["reasons"]
    assert sum(each["count"] for each in shown) == 3
    assert {each["source"] for each in shown} == {"main"}
    assert all(each["first_ms"] <= each["last_ms"] for each in shown)
