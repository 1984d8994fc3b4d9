"""The course of the demo: one event of each kind, the same again, a forgery, then the viewers."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable

import click
import msgspec
import orjson

from relay.cli.demo.screen import AGAIN, FORGED, Answered, Repeat, Screen
from relay.cli.send.command import sample
from relay.core.clock import SystemClock
from relay.core.event import LEAD_CAPTURED
from relay.sandbox.model import Attempt
from relay.sandbox.sandbox import Sandbox
from relay.sandbox.viewing import Visit
from relay.video_service.sender import Sender

PACE_S = 1.5
DELIVERY_DEADLINE_S = 5.0


_LINK = "https://files.example.com/quarterly-report.mp4"
_FIELDS = {"company": "Northwind & Sons", "message": "Please call me next week."}


class Act(msgspec.Struct, frozen=True):
    """A change at the video service, and how many events follow from it."""

    perform: Callable[[Sandbox], object]
    events: int


def _capture_lead(sandbox: Sandbox) -> None:
    """A stranger begins to watch, and says who it is; so the view counts as well."""
    videos = sandbox.workspace.videos.values()
    ready = next(video for video in videos if video.status == "ready")
    session = sandbox.viewing.begin(ready.id, Visit(utm={"source": "newsletter"}))
    sandbox.viewing.submit(
        session.id, email="ada.moreau@example.com", name="Ada Moreau", fields=_FIELDS
    )
    sandbox.viewing.end(session.id)


def _upload(sandbox: Sandbox) -> None:
    sandbox.library.add(title="Quarterly report")


def _fail(sandbox: Sandbox) -> None:
    video = sandbox.library.import_from(_LINK, title="Quarterly report, again")
    sandbox.library.fail(video.id, message=None)


def _trash(sandbox: Sandbox) -> None:
    failed = next(video for video in sandbox.workspace.videos.values() if video.status == "failed")
    sandbox.library.trash(failed.id)


def _send_test(sandbox: Sandbox) -> None:
    for endpoint in sandbox.workspace.endpoints:
        sandbox.webhooks.send_test(endpoint)


OPENING: tuple[Act | Repeat, ...] = (
    Act(_capture_lead, events=2),
    AGAIN,
    FORGED,
    Act(_upload, events=2),
    Act(_fail, events=2),
    Act(_trash, events=1),
    Act(_send_test, events=1),
)


class Script:
    """Shows what the service sends, and reads the deliveries from the sink's output."""

    def __init__(
        self, sandbox: Sandbox, screen: Screen, *, events: int | None, pace_s: float, viewers: int
    ) -> None:
        self._sandbox = sandbox
        self._screen = screen
        self._events = events
        self._pace_s = pace_s
        self._viewers = viewers
        self._clock = SystemClock()
        self._tally: Counter[str] = Counter()
        self._shown = 0
        self._answers: asyncio.Queue[Answered] = asyncio.Queue()
        self._deliveries: dict[str, asyncio.Future[tuple[str, int]]] = {}
        self._first_lead = b""
        sandbox.webhooks.watch = self._answered

    def close(self) -> None:
        tally = self._tally
        self._screen.close(
            delivered=tally["delivered"],
            duplicates=tally["duplicate"],
            forged=tally["unauthorized"],
        )

    async def perform(self, sender: Sender, forger: Sender, stop: asyncio.Event) -> None:
        """Play the opening, let the viewers come, and set `stop` after the last event."""
        for index, act in enumerate(OPENING):
            if index:
                await asyncio.sleep(self._pace_s)
            if isinstance(act, Act):
                act.perform(self._sandbox)
                await self._show(act.events)
            else:
                await self._repeat(act, forger if act == FORGED else sender)
            if self._is_over():
                break
        else:
            self._screen.suggest()
            self._sandbox.populate(viewers=self._viewers, videos=0)
        while not self._is_over():
            await self._show(1)
        stop.set()

    async def watch(self, lines: asyncio.StreamReader) -> None:
        """Read the sink's output to its end."""
        while line := await lines.readline():
            now_ms = self._clock.now_ms()
            if sys.stdout is None or not sys.stdout.isatty():
                click.echo(line, nl=False)
            event = orjson.loads(line)
            self._tally["delivered"] += 1
            if not self._is_of_service(event["id"]):
                self._screen.other(event, ms=now_ms - int(event["receivedAt"]))
                continue
            delivery = self._delivery(event["id"])
            if not delivery.done():
                delivery.set_result((line.decode().rstrip(), now_ms))

    def _answered(self, attempt: Attempt, body: bytes) -> None:
        if attempt.event == LEAD_CAPTURED and not self._first_lead:
            self._first_lead = body
        self._answers.put_nowait(Answered.by_service(attempt))

    async def _repeat(self, act: Repeat, sender: Sender) -> None:
        """Send the first lead again, or one that is signed with another secret."""
        body = self._first_lead if act == AGAIN else sample(LEAD_CAPTURED).body
        attempted = await sender.attempt(body)
        self._show_request(Answered.by_hand(act, orjson.loads(body)["id"], attempted))

    async def _show(self, count: int) -> None:
        """Show the service's next requests, each with its delivery, up to the last event."""
        for _ in range(count):
            if self._is_over():
                return
            answered = await self._answers.get()
            self._show_request(answered)
            if answered.since_ms is not None:
                await self._show_delivery(answered.event_id, answered.since_ms)

    def _show_request(self, answered: Answered) -> None:
        self._shown += 1
        self._tally[answered.outcome] += 1
        self._screen.request(answered)

    async def _show_delivery(self, event_id: str, since_ms: int) -> None:
        try:
            async with asyncio.timeout(DELIVERY_DEADLINE_S):
                line, at_ms = await asyncio.shield(self._delivery(event_id))
        except TimeoutError:
            self._screen.late()
        else:
            del self._deliveries[event_id]
            self._screen.delivery(line, ms=at_ms - since_ms)

    def _delivery(self, event_id: str) -> "asyncio.Future[tuple[str, int]]":
        if event_id not in self._deliveries:
            self._deliveries[event_id] = asyncio.get_running_loop().create_future()
        return self._deliveries[event_id]

    def _is_of_service(self, event_id: str) -> bool:
        return any(attempt.event_id == event_id for attempt in self._sandbox.workspace.attempts)

    def _is_over(self) -> bool:
        return self._events is not None and self._shown >= self._events
