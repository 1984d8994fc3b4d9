"""A relay as the endpoint of a sandbox that is full of viewers, both on one stepped clock."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay import config
from tests import service
from tests.conftest import NOW_MS
from tests.ports import free_port
from tests.sandbox.service import Served, serving
from tests.sandbox.stepped_clock import SteppedClock
from tests.service import Relay
from tests.stub_server import StubServer, until

pytestmark = pytest.mark.servers

HOUR_S = 3600
PATH = "/webhooks"

DOCUMENT = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:0"

[store]
path = "{folder}/relay.db"
min_free = "1MiB"

[[source]]
name = "main"
path = "/webhooks"
secrets = ["{secret}"]

[[sink]]
name = "all"
type = "http"
url = "{url}"
events = ["*", "webhook.test"]
"""


async def registered(
    served: Served, folder: Path, *, port: int, destination: StubServer
) -> config.Config:
    """Register an endpoint, and write a relay's config with its secret."""
    body = {"url": f"http://127.0.0.1:{port}{PATH}", "events": []}
    secret = (await served.ask("POST", "/v1/webhooks", json=body)).json()["secret"]
    path = folder / "config.toml"
    path.write_text(
        DOCUMENT.format(port=port, folder=folder, secret=secret, url=destination.url()),
        encoding="utf-8",
    )
    return config.load(path)


async def truth(served: Served) -> dict[str, Any]:
    document: dict[str, Any] = (await served.client.get("/sandbox/truth")).json()
    return document


async def delivered(relay: Relay, destination: StubServer) -> list[dict[str, Any]]:
    """Every event that the relay has stored, once its sink has taken them all."""

    def arrived() -> dict[str, dict[str, Any]]:
        # A step of the clock may end an attempt, so that the sink gets an event twice.
        bodies = [orjson.loads(request.body) for request in destination.requests]
        return {body["id"]: body for body in bodies}

    await until(lambda: len(arrived()) == relay.stored(), what="the last delivery")
    return list(arrived().values())


async def test_every_event_of_a_day_of_viewers_reaches_the_relays_sink(tmp_path: Path) -> None:
    clock, port = SteppedClock(NOW_MS), free_port()
    async with StubServer() as destination, serving(clock=clock) as served:
        settings = await registered(served, tmp_path, port=port, destination=destination)
        async with service.serving(settings, clock=clock) as relay:
            served.sandbox.populate(viewers=40, videos=6)
            await served.step(24 * HOUR_S)
            assert served.sandbox.workspace.outbox == []
            arrived = await delivered(relay, destination)
        said = await truth(served)
    watched = Counter(
        (each["data"]["viewer"]["email"], each["data"]["video"]["id"], each["data"]["milestone"])
        for each in arrived
        if each["event"] == "video.watched"
    )
    true = {(each["email"], each["video"]["id"], each["milestone"]) for each in said["milestones"]}
    assert set(watched) == true
    assert set(watched.values()) == {1}
    leads = [each["data"]["id"] for each in arrived if each["event"] == "lead.captured"]
    assert sorted(leads) == sorted(each["lead"]["id"] for each in said["leads"])
    assert len(true) > 50
    assert leads


async def test_a_relay_that_is_away_for_minutes_misses_nothing(tmp_path: Path) -> None:
    clock, port = SteppedClock(NOW_MS), free_port()
    async with StubServer() as destination, serving(clock=clock) as served:
        settings = await registered(served, tmp_path, port=port, destination=destination)
        video = (await served.add())["id"]
        watch = {"video": video, "email": "ada@example.com", "to": 1}
        await served.control("viewers/watch", watch)
        await served.step(300)
        assert served.sandbox.workspace.outbox != []
        async with service.serving(settings, clock=clock) as relay:
            await served.step(320)
            arrived = await delivered(relay, destination)
        assert served.sandbox.workspace.outbox == []
    kinds = sorted(each["event"] for each in arrived)
    assert kinds == ["video.created", "video.ready", "video.watched"]


async def test_a_secret_that_was_rotated_is_refused_by_the_relay(tmp_path: Path) -> None:
    clock, port = SteppedClock(NOW_MS), free_port()
    async with StubServer() as destination, serving(clock=clock) as served:
        settings = await registered(served, tmp_path, port=port, destination=destination)
        async with service.serving(settings, clock=clock) as relay:
            (webhook,) = served.sandbox.workspace.endpoints
            await served.ask("POST", f"/v1/webhooks/{webhook}/rotate-secret")
            await served.ask("POST", f"/v1/webhooks/{webhook}/test")
            await served.step(0)
            await relay.assert_refused("mismatch", 401)
            (attempt,) = await served.deliveries(webhook)
    assert (attempt["state"], attempt["status"]) == ("failed", 401)
