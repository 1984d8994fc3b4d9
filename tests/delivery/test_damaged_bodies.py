"""A stored body that differs from the received one: sent nowhere, and shown in every view."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay.core.delivery import DAMAGED
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.app.reloading import sink
from tests.caller import PATIENCE_S, post
from tests.loop_watch import PlainLoop
from tests.operator import ADMIN, Operator, operating
from tests.service import Relay
from tests.stub_server import StubServer, until

ORDERED = 'ordered = "video"'


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    # In real time, because a whole relay works.
    return "asyncio", {"loop_factory": PlainLoop}


def watched(event_id: str) -> bytes:
    data = {"id": "one", "video": {"id": "one"}, "email": "ada@example.com"}
    return orjson.dumps({"id": event_id, "event": "video.watched", "data": data})


@dataclass
class Scene:
    """A relay whose sink is paused, so that a waiting body can be damaged before it is sent."""

    relay: Relay
    operator: Operator
    destination: StubServer
    store: Path

    async def send(self, *event_ids: str) -> None:
        for each in event_ids:
            assert (await self.relay.ask(post(watched(each)))).status == 202

    def damage(self, event_id: str) -> None:
        """Turn one bit of a body, as a disk does it, and leave all else as it is."""
        with closing(sqlite3.connect(self.store)) as db, db:
            (old,) = db.execute("SELECT body FROM events WHERE id = ?", (event_id,)).fetchone()
            new = old[:-3] + bytes([old[-3] ^ 1]) + old[-2:]
            db.execute("UPDATE events SET body = ? WHERE id = ?", (new, event_id))

    def received(self) -> list[str]:
        return [orjson.loads(request.body)["id"] for request in self.destination.requests]

    async def dead(self) -> list[tuple[str, str]]:
        letters = (await self.operator.get("/dead-letters"))["dead_letters"]
        return [(letter["id"], letter["reason"]) for letter in letters]

    async def settled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.operator.get("/sinks"))["sinks"][0]["pending"]:
                await asyncio.sleep(0.01)

    async def counted(self) -> float:
        return (await self.relay.counts("relay_damaged_bodies_total")).get(("crm",), 0)

    async def history(self, event_id: str) -> Any:
        (event,) = (await self.operator.get("/events", id=event_id))["events"]
        return await self.operator.get(f"/events/{event['seq']}")


@asynccontextmanager
async def staged(folder: Path, more: str = "") -> AsyncIterator[Scene]:
    async with StubServer() as destination:
        settings = service.read(folder, tables=ADMIN + sink("crm", destination.url(), more))
        async with service.serving(settings) as relay, operating(relay) as operator:
            await operator.post("/sinks/crm/pause")
            yield Scene(relay, operator, destination, folder / "relay.db")


@pytest.mark.parametrize("more", ["", ORDERED], ids=["plain", "ordered"])
async def test_a_damaged_body_becomes_a_dead_letter_and_its_neighbours_are_delivered(
    tmp_path: Path, more: str
) -> None:
    async with staged(tmp_path, more) as scene:
        await scene.send("a", "b", "c")
        assert await scene.counted() == 0
        scene.damage("b")
        await scene.operator.post("/sinks/crm/resume")
        await scene.settled()
        assert sorted(scene.received()) == ["a", "c"]
        assert await scene.dead() == [("b", DAMAGED)]
        assert await scene.counted() == 1


async def test_a_replay_does_not_send_a_damaged_body(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        await scene.send("a", "b")
        await scene.operator.post("/sinks/crm/resume")
        await scene.settled()
        scene.damage("b")
        await scene.operator.post("/replays", {"all": True})
        await until(lambda: len(scene.received()) == 3, what="the replay of the sound one")
        await scene.settled()
        assert await scene.dead() == [("b", DAMAGED)]
        await scene.operator.post("/replays", {"outcome": "dead"})
        await scene.relay.until_counted("relay_damaged_bodies_total", "crm", value=2)
        await scene.settled()
        assert await scene.dead() == [("b", DAMAGED)]
        assert sorted(scene.received()) == ["a", "a", "b"]


async def test_every_view_shows_the_body_as_damaged(tmp_path: Path) -> None:
    async with staged(tmp_path) as scene:
        await scene.send("a", "b")
        scene.damage("b")
        assert [(await scene.history(each))["is_damaged"] for each in ("a", "b")] == [False, True]
        export = await scene.operator.post("/people/export", {"email": "ada@example.com"})
        assert [each["is_damaged"] for each in export["events"]] == [False, True]
        (fault,) = (await scene.operator.get("/store/check"))["faults"]
        assert fault.startswith("event b of source main: the stored body is damaged")
