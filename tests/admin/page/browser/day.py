"""A week of a relay, played in seconds: what people look at on the page."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import orjson

from relay.core.event import MILESTONES
from relay.core.sample_events import PROGRESS
from tests import service
from tests.admin.page.visiting import ADMIN
from tests.caller import post, signed
from tests.operator import operating
from tests.service import Relay, ShiftedClock
from tests.sinks.far_end import FarEnd, Reply, Request, until

HOUR_S = 3600
DAY_S = 24 * HOUR_S
PEOPLE = 60
SINKS = ("crm", "sales", "warehouse", "newsletter")
TITLES = (
    "Product tour in four minutes",
    "Customer story: Northwind & Sons",
    "Webinar: pricing that people understand",
    "Onboarding, part 1: your first project",
)
LEAST = 300
"""Events of the day, at least."""


class Destinations:
    """The far end of every sink, which changes its mind during the day."""

    def __init__(self) -> None:
        self.crm = 200
        self.sales = 200

    def reply(self, request: Request) -> Reply:
        if request.target == "/crm" and self.crm != 200:
            return Reply(self.crm, b'{"error":"the token has expired"}')
        if request.target == "/sales" and self.sales != 200:
            return Reply(self.sales, b"slow down", {"retry-after": "30"})
        return Reply(200, b"ok")


@contextlib.asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Relay]:
    """A relay after its week, still running."""
    clock, destinations = ShiftedClock(), Destinations()
    async with FarEnd() as far_end:
        far_end.reply = destinations.reply
        tables = ADMIN + "".join(
            service.SINK.format(name=name, url=far_end.url(f"/{name}"), more=_MORE.get(name, ""))
            for name in SINKS
        )
        clock.shift_s = -7 * DAY_S
        settings = service.read(folder, tables=tables)
        async with service.serving(settings, clock=clock) as relay:
            await _week(relay, clock, destinations)
            await _hour(relay, clock, destinations)
        # A process counts the minutes that it lived through; a new one reads them from the store.
        clock.shift_s = 0
        async with service.serving(settings, clock=clock) as relay:
            await _quiet(relay)
            yield relay


_MORE = {
    "sales": 'events = ["lead.captured"]\nwhen = "data.fields.company"',
    "newsletter": 'events = ["lead.captured"]\nwhen = "data.fields.newsletter == `true`"',
}


async def _week(relay: Relay, clock: ShiftedClock, destinations: Destinations) -> None:
    random = Random(7)
    for day in range(6, 0, -1):
        for hour in sorted(random.choices(range(7, 22), k=10)):
            clock.shift_s = -day * DAY_S + (hour - 12) * HOUR_S
            destinations.crm = 422 if day == 2 and hour > 18 else 200
            await _send(relay, clock, _events(random, 3))
        await _settled(relay)
    destinations.crm = 200


async def _hour(relay: Relay, clock: ShiftedClock, destinations: Destinations) -> None:
    """The last hour: crm's token expires, sales slows down, and somebody pauses newsletter."""
    random = Random(60)
    async with operating(relay) as operator:
        for minute in range(60, 0, -1):
            clock.shift_s = -minute * 60
            if minute == 40:
                await operator.post("/sinks/newsletter/pause")
            if minute == 14:
                await _settled(relay)
                destinations.crm, destinations.sales = 401, 429
            await _send(relay, clock, _events(random, random.randrange(2, 7)))
            if minute == 30:
                await _send(relay, clock, [b'{"id": "evt_unreadable", "event": "video.ready"'])
        await _settled(relay)
        await operator.post("/replays", {"sink": "warehouse", "kind": "lead.captured"})
        # The relay took the nights of its clock for absences.
        for absence in (await operator.get("/absences"))["absences"]:
            await operator.post(f"/absences/{absence['id']}/acknowledge")


def _events(random: Random, visits: int) -> Iterator[bytes]:
    """People who watch a video for some time, some of whom leave their address."""
    for _ in range(visits):
        number = random.randrange(PEOPLE)
        person = {"email": f"visitor{number:02}@example.com", "name": f"Visitor {number}"}
        index = min(int(random.expovariate(0.9)), len(TITLES) - 1)
        video = {"id": f"vid_{index}be3a10c77f{index}", "title": TITLES[index]}
        for step in range(min(int(random.expovariate(0.5)) + 1, len(MILESTONES))):
            yield _event(
                random,
                "video.watched",
                {
                    "video": video,
                    "viewer": person if random.random() < 0.8 else None,
                    "progress": PROGRESS[step],
                    "milestone": MILESTONES[step],
                    "completed": MILESTONES[step] == "completed",
                },
            )
        if random.random() < 0.25:
            fields = {"company": "Northwind & Sons", "newsletter": random.random() < 0.5}
            yield _event(
                random,
                "lead.captured",
                {"id": f"lead_{number}", **person, "fields": fields, "video": video},
            )
    if random.random() < 0.1:
        kind = random.choice(("video.created", "video.ready", "video.failed"))
        yield _event(random, kind, {**video, "errorMessage": None})


def _event(random: Random, kind: str, data: dict[str, Any]) -> bytes:
    identifier = f"evt_{random.randrange(16**12):012x}"
    return orjson.dumps({"id": identifier, "event": kind, "createdAt": None, "data": data})


async def _send(relay: Relay, clock: ShiftedClock, bodies: Any) -> None:
    async with await relay.call() as caller:
        for body in bodies:
            signature = ("Service-Signature", signed(body, at_s=clock.now_ms() // 1000))
            answer = await caller.ask(post(body, signature, sign=False))
            assert answer.status in (200, 202), answer


async def _settled(relay: Relay) -> None:
    """Wait until the sinks that take everything have nothing pending."""
    async with operating(relay) as operator:
        async with asyncio.timeout(30):
            while True:
                sinks = (await operator.get("/sinks"))["sinks"]
                active = [each for each in sinks if each["condition"]["state"] == "active"]
                if not any(each["pending"] for each in active):
                    return
                await asyncio.sleep(0.02)


async def _quiet(relay: Relay) -> None:
    await until(lambda: relay.stored() >= LEAST, what="the day's events")
    await _settled(relay)
