"""A day of a relay with all that changes its figures, by a clock that is stepped.

Restarts, a long absence, duplicates, conflicts, unreadable requests, wrong signatures during a
rotation, leads and milestones, dead letters, a replay, a discard, an erasure, sinks that are
throttled, parked, paused and removed, and a reconciliation with the sandbox.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from relay.core.event import MILESTONES
from tests import service
from tests.admin.page.visiting import ADMIN
from tests.caller import SECRET, post, signed
from tests.conftest import NOW_MS
from tests.operator import Operator, operating
from tests.sandbox.service import Served, serving
from tests.sandbox.stepped_clock import SteppedClock
from tests.service import OTHER_SECRET, Relay
from tests.stub_server import Reply, Request, StubServer, until

API = '[source.api]\nbase_url = "{url}"\nkey = "{key}"\n'
OTHER = '[[source]]\nname = "other"\npath = "/other"\nsecrets = ["env:OTHER_SECRET"]\n'
RETRY = '[sink.retry]\nfirst = "1h"\nmax = "1h"\n'
SINKS = {
    "crm": "",
    "sales": f'events = ["lead.captured"]\n{RETRY}',
    "billing": f'events = ["lead.captured"]\nconcurrency = 1\n{RETRY}',
    "mail": 'events = ["video.watched"]',
    "parked": f'events = ["video.ready"]\n{RETRY}',
    "rebuilt": 'events = ["video.*", "lead.*"]\nreconstructed = true',
}
OLD = 'events = ["video.ready"]'

VIEWERS = 1_088
DEADLINE_S = 30.0

_numbers = itertools.count(1)


def body(kind: str, **data: object) -> bytes:
    return orjson.dumps({"id": f"evt_{next(_numbers)}", "event": kind, "data": data})


def lead(name: str) -> bytes:
    return body("lead.captured", email=f"{name}@example.com", video={"id": "vid_1"})


def watched(name: str, milestone: str) -> bytes:
    viewer = {"email": f"{name}@example.com"}
    return body("video.watched", video={"id": "vid_1"}, viewer=viewer, milestone=milestone)


@dataclass
class Destinations:
    """The sinks' destinations, each with its own mind."""

    refusals: int = 4
    """Leads that billing refuses next; a fifth would park it."""
    answers: dict[str, int] = field(default_factory=lambda: {"sales": 503, "parked": 401})

    def reply(self, request: Request) -> Reply:
        name = request.target.removeprefix("/")
        if name == "billing" and self.refusals:
            self.refusals -= 1
            return Reply(422, b"no")
        return Reply(self.answers.get(name, 200))


@dataclass
class Day:
    """The relay of the day, its operator and its senders."""

    relay: Relay
    clock: SteppedClock
    operator: Operator

    async def send(
        self, *bodies: bytes, target: str = "/webhooks", secret: str = SECRET
    ) -> list[int]:
        """Post events on one connection; returns the statuses."""
        async with await self.relay.call() as caller:
            statuses = []
            for each in bodies:
                header = signed(each, secret=secret, at_s=self.clock.now_ms() // 1000)
                request = post(each, ("Service-Signature", header), target=target, sign=False)
                statuses.append((await caller.ask(request)).status)
        return statuses

    async def step(self, seconds: float) -> None:
        """Let time pass in which nothing happens, and the relay looks at its backlogs."""
        self.clock.step_to(self.clock.now_ms() + round(seconds * 1000))
        await self.relay.service._maintenance.show_gauges()

    async def settle(self) -> None:
        """Wait until nothing is in flight, and active sinks have nothing pending."""
        async with asyncio.timeout(DEADLINE_S):
            while any(map(_is_busy, (await self.operator.get("/sinks"))["sinks"])):
                await asyncio.sleep(0.02)

    async def since(self) -> dict[str, Any]:
        """Return since when each sink is in its state, with the state."""
        conditions = [each["condition"] for each in (await self.operator.get("/sinks"))["sinks"]]
        return {each["name"]: (each["state"], each["since_ms"]) for each in conditions}

    async def ended(self, path: str) -> Any:
        """Wait for the end of a replay or a reconciliation."""
        async with asyncio.timeout(DEADLINE_S):
            while (found := await self.operator.get(path))["state"] == "running":
                await asyncio.sleep(0.02)
        return found


def _is_busy(sink: dict[str, Any]) -> bool:
    condition = sink["condition"]
    is_open = condition["state"] == "active"
    return bool(condition["in_flight"] or (is_open and sink["pending"]))


@contextlib.asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Relay]:
    """A relay after its day, whose clock stands still from now on."""
    clock, destinations = SteppedClock(NOW_MS), Destinations()
    async with StubServer() as destination, serving(clock=clock) as served:
        destination.reply = destinations.reply

        @contextlib.asynccontextmanager
        async def running(**more: str) -> AsyncIterator[Day]:
            settings = service.read(folder, tables=_tables(destination, served, more))
            async with service.serving(settings, clock=clock) as relay, operating(relay) as each:
                yield Day(relay, clock, each)

        async with running(old=OLD) as day:
            await _morning(day, destinations)
        clock.step_to(clock.now_ms() + 27_600)
        async with running(old=OLD) as day:
            await _noon(day)
        await _views_meanwhile(served)
        async with running() as day:
            await _afternoon(day)
            before = await day.since()
        clock.step_to(clock.now_ms() + 9_800)
        async with running() as day:
            await _evening(day)
            after = await day.since()
            assert after == before
            yield day.relay


def _tables(destination: StubServer, served: Served, more: dict[str, str]) -> str:
    key = served.headers("Admin")["Authorization"].removeprefix("Bearer ")
    sinks = "".join(
        service.SINK.format(name=name, url=destination.url(f"/{name}"), more=each)
        for name, each in {**SINKS, **more}.items()
    )
    return API.format(url=served.url, key=key) + ADMIN + OTHER + sinks


async def _morning(day: Day, destinations: Destinations) -> None:
    operator = day.operator
    for sink in ("mail", "old"):
        await operator.post(f"/sinks/{sink}/pause")
        await day.step(1.5)
    leads = [lead(f"lead-{number}") for number in range(8)]
    assert set(await day.send(*leads)) == {202}
    await day.settle()
    assert await day.send(leads[0], leads[1]) == [200, 200]
    assert await day.send(orjson.dumps({**orjson.loads(leads[0]), "more": 1})) == [200]
    assert await day.send(b"[]", b'{"id": 7}', b"{") == [200, 200, 200]
    assert await day.send(lead("second"), target="/other", secret=OTHER_SECRET) == [202]
    await _many(day, [watched(f"viewer-{number}", "started") for number in range(VIEWERS)])
    others = [watched(f"viewer-{number}", each) for number, each in enumerate(MILESTONES * 3)]
    ready = [body("video.ready", id=f"vid_{number}", title="A tour") for number in range(3)]
    assert set(await day.send(*others, *ready, body("webhook.test"))) == {202}
    await day.settle()
    await operator.post("/people/erase", {"email": "lead-7@example.com"})
    destinations.refusals = 2
    await day.step(12)
    await operator.post("/replays", {"sink": "billing", "outcome": "dead"})
    await day.ended("/replays/1")
    await day.settle()
    (letter, *_) = (await operator.get("/dead-letters", sink="billing"))["dead_letters"]
    chosen = {name: letter[name] for name in ("id", "source", "sink")}
    await operator.post("/dead-letters/discard", chosen)


async def _many(day: Day, bodies: Sequence[bytes]) -> None:
    """Send events on several connections."""
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(day.send(*bodies[number::4]))


async def _noon(day: Day) -> None:
    """Let the backlogs move for some minutes, so that their rates are known."""
    for number in range(12):
        await day.step(17)
        await day.send(watched(f"guest-{number}", "started"), lead(f"guest-{number}"))
        await day.settle()


async def _views_meanwhile(served: Served) -> None:
    """Let people watch for three hours while the relay is away."""
    video = (await served.add())["id"]
    for number, share in enumerate((1, 0.6)):
        email = f"lost-{number}@example.com"
        await served.control("viewers/watch", {"video": video, "email": email, "to": share})
    await served.step(3 * 3600)


async def _afternoon(day: Day) -> None:
    await day.operator.post("/sources/other/rotation", {"duration_ms": 3_600_000})
    kept = [lead("kept"), lead("kept-too")]
    assert await day.send(*kept, target="/other", secret="of-nobody") == [401, 401]
    await day.settle()
    reconciler, config = day.relay.service.reconciler, day.relay.service._reloader.config
    reconciler.adopt(config.sources, config.routes)
    await until(lambda: bool(reconciler.unreconciled.get("main")), what="a noticed absence")
    (run,) = (await day.operator.post("/reconciliations", {"source": "main"}))["reconciliations"]
    assert (await day.ended(f"/reconciliations/{run['id']}"))["state"] == "done"
    await day.settle()
    for number in range(12):
        await day.step(16)
        await day.send(watched(f"late-{number}", "50%"), lead(f"late-{number}"))
        await day.settle()


async def _evening(day: Day) -> None:
    await until(lambda: not day.relay.service._store.unclean, what="a checked store")
    await day.settle()
    await day.step(6.3)
    leads = [lead(f"evening-{number}") for number in range(5)]
    assert set(await day.send(*leads)) == {202}
    await day.settle()
    while await day.relay.service._store.audience.fill():
        pass
    await day.step(2.4)
