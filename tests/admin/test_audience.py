"""The audience of a running relay: counted in the background, and served by the API."""

from pathlib import Path

import pytest

from relay.app import maintenance
from tests import service
from tests.admin.test_api import body, send, working
from tests.guarantees.process import until
from tests.operator import ADMIN, operating
from tests.stub_server import StubServer

VIDEO = {"id": "vid_1", "title": "Tour"}


def watched(event_id: str, email: str, milestone: str = "started") -> bytes:
    return body(
        event_id, "video.watched", video=VIDEO, viewer={"email": email}, milestone=milestone
    )


async def test_the_api_returns_every_step_and_counts_people_once(tmp_path: Path) -> None:
    async with StubServer() as destination, working(tmp_path, destination) as (relay, operator):
        await send(relay, watched("a", "ann@example.com"), watched("b", "Ann@Example.com"))
        await send(relay, body("c", email="bob@example.com", video=VIDEO))
        found = await operator.get("/audience")
        (group,) = found["groups"]
        assert (group["video"], group["title"], group["day"]) == ("vid_1", "Tour", None)
        assert group["steps"] == found["total"]
        steps = {step["milestone"]: (step["people"], step["events"]) for step in found["total"]}
        nobody = (0, 0)
        assert list(steps.values()) == [(1, 2), nobody, nobody, nobody, nobody, (1, 1)]
        assert list(steps) == ["started", "25%", "50%", "75%", "completed", None]
        assert "example.com" not in str(found)
        assert (await operator.get("/audience", source="main"))["total"] == found["total"]
        await operator.get("/audience", source="nobody", status=404)
        await operator.get("/audience", by="day", zone="Europe", status=404)
        await operator.get("/audience", by="day", zone="../UTC", status=400)
        await operator.get("/audience", by="source", zone="UTC", status=422)
        await operator.get("/audience", by="colour", status=400)


async def test_the_audience_is_counted_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "AUDIENCE_EVERY_S", 0.05)
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay:
        await send(relay, *(watched(f"e{n}", "ann@example.com") for n in range(3)))
        await until(lambda: relay.stored("audience") == 3, what="the counting")
    async with service.serving(settings) as relay, operating(relay) as operator:
        assert (await operator.get("/audience"))["total"][0]["events"] == 3
