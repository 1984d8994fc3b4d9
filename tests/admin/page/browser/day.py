"""A week of a relay, played in seconds by a clock of its own: what people look at on the page.

Nothing in it depends on the machine's clock or on chance, so that its pictures can be compared.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from relay import __version__
from relay.config import Config
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from relay.core.minutes import MINUTE_MS
from relay.reconciliation.report import About, RunReport
from relay.store.sink_states import Change
from relay.store.sqlite.driver import sqlite3
from tests import service
from tests.admin.page.browser.visits import events, lead_of, video
from tests.admin.page.visiting import ADMIN
from tests.caller import post, signed
from tests.operator import Operator, operating
from tests.service import Relay
from tests.stub_server import Reply, Request, StubServer, until

NOW = datetime(2026, 11, 20, 12, 0, 40, tzinfo=UTC)
"""When people look."""

LEAD = "evt_5d0c8a3be2f1"
"""The first lead that crm and sales did not take."""

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S
SINKS = ("crm", "sales", "warehouse", "newsletter")

OWN_REFUSALS = 3

RESTART_S = 44.087
"""Before `NOW`: a process counts the minutes that it lived through; a new one reads all of them."""


@dataclass
class DayClock:
    """Stands still between the steps of the day."""

    before_s: float = 7 * DAY_S
    """Seconds until `NOW`."""
    monotonic_s: float = 0.0
    """Stands still even then, because sinks would probe their destinations in between."""

    def now_ms(self) -> int:
        return round((NOW.timestamp() - self.before_s) * 1000)

    def monotonic(self) -> float:
        return self.monotonic_s


class Destinations:
    """The destination of every sink, which changes its mind during the day."""

    def __init__(self) -> None:
        self.crm = 200
        self.sales = 200
        self.refused = 0
        """Requests to crm."""

    def has_refused(self, count: int) -> bool:
        return self.refused == count

    def reply(self, request: Request) -> Reply:
        # Some refusals are the events' own; a fifth in a row would park the sink.
        is_enough = self.crm == 422 and self.refused == OWN_REFUSALS
        if request.target == "/crm" and self.crm != 200 and not is_enough:
            self.refused += 1
            return Reply(self.crm, b'{"error":"the token has expired"}')
        if request.target == "/sales" and self.sales != 200:
            return Reply(self.sales, b"slow down", {"retry-after": "1070"})
        return Reply(200, b"ok")


@contextlib.asynccontextmanager
async def played(folder: Path) -> AsyncIterator[Relay]:
    """A relay after its week, still running."""
    clock, destinations = DayClock(), Destinations()
    async with StubServer() as destination:
        destination.reply = destinations.reply
        tables = ADMIN + "".join(
            service.SINK.format(
                name=name, url=destination.url(f"/{name}"), more=_MORE.get(name, "")
            )
            for name in SINKS
        )
        settings = service.read(folder, tables=tables)
        async with service.serving(settings, clock=clock) as relay:
            await _reconciled(relay, clock)
            await _week(relay, clock, destinations)
            await _hour(relay, clock, destinations)
        _write_durations(settings)
        clock.before_s = RESTART_S
        async with service.serving(settings, clock=clock) as relay:
            await _until_states(relay, crm="parked", sales="throttled")
            await _note_states(relay, clock)
            clock.before_s = 10
            await _send(relay, clock, events(Random(61), 2))
            await _settled(relay)
            while await relay.service._store.audience.fill():
                pass
            clock.before_s = 0
            yield relay


_MORE = {
    "crm": "concurrency = 1",
    "sales": 'concurrency = 4\nevents = ["lead.captured"]\nwhen = "data.fields.company"',
    "newsletter": 'events = ["lead.captured"]\nwhen = "data.fields.newsletter == `true`"',
}


async def _reconciled(relay: Relay, clock: DayClock) -> None:
    """An outage before the week was asked for."""
    runs, now_ms = relay.service._store.reconstructions, clock.now_ms() - 8 * DAY_S * 1000
    span = {"since_ms": now_ms - HOUR_S * 1000, "until_ms": now_ms}
    run = await runs.begin("main", **span, dry_run=False, now_ms=now_ms)
    report = RunReport(unsubscribed=["video.ready"])
    view = About(VIDEO_WATCHED, "visitor07@example.com", "vid_1", "Product tour")
    report.cannot_know("older", about=view)
    report.leave("form_recent", about=replace(view, kind=LEAD_CAPTURED, lead="lead_07"))
    await runs.end(run, "done", report=report.values(), place=None, now_ms=now_ms)


async def _week(relay: Relay, clock: DayClock, destinations: Destinations) -> None:
    random = Random(7)
    for day in range(6, 0, -1):
        for hour in sorted(random.sample(range(7, 22), k=10)):
            clock.before_s = day * DAY_S - (hour - 12) * HOUR_S - random.uniform(0, HOUR_S)
            destinations.crm = 422 if day == 2 and hour > 18 else 200
            await _send(relay, clock, events(random, 3))
            await _settled(relay)
    destinations.crm = 200


async def _hour(relay: Relay, clock: DayClock, destinations: Destinations) -> None:
    """The last hour: crm's token expires, sales slows down, and somebody pauses newsletter."""
    random = Random(60)
    async with operating(relay) as operator:
        operator.client.headers["user-agent"] = f"relay/{__version__}"
        for minute in range(60, 0, -1):
            clock.before_s = minute * MINUTE_S - random.uniform(0, 10)
            if minute == 56:
                await operator.client.post("/-/reload")
            if minute == 47:
                await operator.post("/people/erase", {"email": "gone@example.com"})
            if minute == 45:
                await operator.post("/replays", {"sink": "newsleter"}, status=404)
            if minute == 40:
                await operator.post("/sinks/newsletter/pause")
                await _note_states(relay, clock)
            if minute == 15:
                await _replay(operator, relay, clock)
            if minute == 14:
                await _fail(relay, clock, destinations, random)
            await _send(relay, clock, events(random, random.randrange(2, 7)))
            if minute == 30:
                await _send(relay, clock, [b'{"id": "evt_unreadable", "event": "video.ready"'])
            await _settled(relay)
    await _calm(relay, clock)


async def _fail(relay: Relay, clock: DayClock, destinations: Destinations, random: Random) -> None:
    """Send event after event, until crm has refused so many that it is to blame, not they."""
    destinations.crm, destinations.sales = 401, 429
    first = lead_of(LEAD, 7, is_subscriber=True, video=video(1))
    for event in (first, *islice(events(random, 5), 4)):
        before = destinations.refused
        await _send(relay, clock, [event])
        await until(partial(destinations.has_refused, before + 1), what="crm's answer")
    await _until_states(relay, crm="parked", sales="throttled")
    await _note_states(relay, clock)


async def _replay(operator: Operator, relay: Relay, clock: DayClock) -> None:
    # Replays wait while there are new events for a sink.
    clock.monotonic_s += 10
    since_ms = clock.now_ms() - 20 * MINUTE_MS
    order = {"sink": "warehouse", "kind": "lead.captured", "since_ms": since_ms}
    begun = await operator.post("/replays", order)
    async with asyncio.timeout(30):
        while (await operator.get(f"/replays/{begun['id']}"))["state"] == "running":
            await asyncio.sleep(0.02)
    await _settled(relay)


async def _note_states(relay: Relay, clock: DayClock) -> None:
    """Record the states now: by itself the relay does so some seconds later."""
    async with operating(relay) as operator:
        sinks = await _sinks(operator)
    states = {name: Change(each["condition"]["state"]) for name, each in sinks.items()}
    await relay.service._store.sink_states.note(states, now_ms=clock.now_ms())


async def _calm(relay: Relay, clock: DayClock) -> None:
    """The relay took the nights of its clock for absences; nobody has to acknowledge them."""
    absences = relay.service._store.absences
    await absences.beat(now_ms=clock.now_ms(), cause="stalled", over_ms=DAY_S * 1000)
    for each in await absences.unacknowledged(limit=1000):
        await absences.acknowledge(each.id, now_ms=each.to_ms)


def _write_durations(settings: Config) -> None:
    """Let each attempt take the time that it would take over a network, by this clock none."""
    with contextlib.closing(sqlite3.connect(service.store_file(settings))) as db, db:
        db.execute(
            "UPDATE attempts SET duration_ms = 4 + (event * 7919 + length(sink) * 31) % 93, "
            "started_at = started_at + 2 + length(sink)"
        )


async def _send(relay: Relay, clock: DayClock, bodies: Iterable[bytes]) -> None:
    async with await relay.call() as caller:
        for body in bodies:
            signature = ("Service-Signature", signed(body, at_s=clock.now_ms() // 1000))
            answer = await caller.ask(post(body, signature, sign=False))
            assert answer.status in (200, 202), answer


async def _sinks(operator: Operator) -> dict[str, Any]:
    return {each["condition"]["name"]: each for each in (await operator.get("/sinks"))["sinks"]}


async def _settled(relay: Relay) -> None:
    """Wait until the sinks that take everything have nothing pending."""
    async with operating(relay) as operator, asyncio.timeout(30):
        while any(
            each["pending"]
            for each in (await _sinks(operator)).values()
            if each["condition"]["state"] == "active"
        ):
            await asyncio.sleep(0.01)


async def _until_states(relay: Relay, **states: str) -> None:
    """Wait until sinks are in their states, with nothing in flight."""
    wanted = {name: (state, 0) for name, state in states.items()}
    async with operating(relay) as operator, asyncio.timeout(30):
        while wanted != {
            name: (each["condition"]["state"], each["condition"]["in_flight"])
            for name, each in (await _sinks(operator)).items()
            if name in states
        }:
            await asyncio.sleep(0.01)
