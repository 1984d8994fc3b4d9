"""A real relay tells what leads of a real sandbox have watched, whatever the sandbox's API does."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.event import LEAD_CAPTURED
from tests import service
from tests.cli.sender import Developer, developing, receiving
from tests.guarantees.process import Relay
from tests.stub_server import Request, StubServer, until

pytestmark = pytest.mark.long

ADA = {"email": "ada@example.com", "name": "Ada"}
SPEED = 2000.0
LIMIT_S = 2.0
SLACK_S = 5.0
"""For everything else that a delivery takes, on a machine that is busy with others."""

SINK = service.SINK.format(
    name="crm", url="{url}", more='events = ["lead.captured"]\nenrich = true'
)


@contextlib.asynccontextmanager
async def watching(folder: Path, crm: StubServer) -> AsyncIterator[tuple[Developer, Relay, str]]:
    """Run a sandbox, a relay and a CRM; Ada has watched 60 % of a video, whose id comes last."""
    async with developing(folder, speed=SPEED) as developer:
        video = await developer.served.add("Product tour")
        async with receiving(developer, sinks=SINK.format(url=crm.url("/leads"))) as (relay, _):
            end_s = video["durationSeconds"] * 0.6
            watch = {"video": video["id"], "to": end_s, **ADA}
            await developer.served.control("viewers/watch", watch)
            await seen(developer, 60)
            yield developer, relay, video["id"]


async def seen(developer: Developer, percent: float) -> None:
    async def history() -> Any:
        answer = await developer.served.ask(
            "GET", "/v1/analytics/viewer", params={"email": ADA["email"]}
        )
        return answer.json()["videos"]

    deadline_s = time.monotonic() + 20
    while not (videos := await history()) or videos[0]["watchedPercent"] < percent - 1:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.1)  # a key has 600 requests a minute


async def lead(developer: Developer, video: str, crm: StubServer, *, count: int = 1) -> Request:
    """Let Ada fill in a form, and wait for the lead at the CRM."""
    await developer.served.control("viewers/lead", {"video": video, **ADA})
    await until(lambda: len(crm.requests) == count, what="the lead")
    assert json.loads(crm.requests[-1].body)["event"] == LEAD_CAPTURED
    return crm.requests[-1]


async def test_a_lead_arrives_with_what_the_person_has_watched(
    tmp_path: Path, destination: StubServer
) -> None:
    async with watching(tmp_path, destination) as (developer, relay, video):
        request = await lead(developer, video, destination)
        assert await relay.metric("relay_enrichments_total", result="answered") == 1
    told = json.loads(request.header["relay-watched"])
    (watched,) = told["watched"]
    assert told["videos"] == 1
    assert (watched["id"], watched["title"]) == (video, "Product tour")
    assert watched["milestone"] == "50%"
    assert b"relay-watched" not in request.body


@pytest.mark.parametrize(
    ("control", "change", "result"),
    [
        ("answers", {"slow": 60}, "late"),
        ("down", {"seconds": 600}, "late"),
        ("limits", {"seconds": 600}, "late"),
        ("limits", {"seconds": 600, "retryAfter": False}, "late"),
        ("answers", {"change": {"videos": "all of them"}}, "answered"),
        (
            "answers",
            {"change": {"videos.watchedPercent": "x", "videos.lastWatchedAt": 7}},
            "answered",
        ),
        ("answers", {"drop": ["videos"]}, "answered"),
    ],
    ids=["slow", "down", "limited", "limited without a time", "wrong", "odd", "empty"],
)
async def test_a_lead_arrives_in_time_whatever_the_api_does(
    tmp_path: Path, destination: StubServer, control: str, change: dict[str, Any], result: str
) -> None:
    async with watching(tmp_path, destination) as (developer, relay, video):
        await developer.served.control(control, change)
        started_s = time.monotonic()
        request = await lead(developer, video, destination)
        assert time.monotonic() - started_s < LIMIT_S + SLACK_S
        counts = {
            name: await relay.metric("relay_enrichments_total", result=name)
            for name in (result, "failed", "late")
        }
        assert sum(counts.values()) == 1
    assert "50%" not in request.header.get("relay-watched", "")
