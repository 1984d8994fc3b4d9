"""One event: its history, its content, the routes that took it, and its actions."""

import asyncio
import shlex
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.events import EventNumber, Listing, RelatedTo, list_events, show_related
from relay.admin.api.parameters import Number, Text
from relay.admin.api.sinks import MaybeEvent, OneEvent, SinkName, discard_delivery, retry_sink
from relay.admin.page.filters import api_request
from relay.admin.page.view import Action, Download, PageView
from relay.admin.page.views.events.content import EventContent, content
from relay.admin.page.views.events.steps import DeliveryTimeline, next_try
from relay.admin.page.views.events.timeline import timeline
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.delivery import Status
from relay.core.units import relative
from relay.store.audience.related import Related
from relay.store.events import DeliveryRecord, EventRecord, History
from relay.store.replays import Replay

RELATED_SHOWN = 5
REPLAYS_SHOWN = 20

PATH = "/events/{seq:number}"


class EventView(EventNumber, frozen=True, kw_only=True):
    """One event, the form of its body, and the attempts before the one with an index."""

    body: Annotated[str, Meta(pattern=r"\A(pretty|raw|as:.+)\Z", max_length=330)] = "pretty"
    attempts: Number | None = None


class OneSink(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery to one sink."""

    sink: Text


class DeliveryHead(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery in the head."""

    sink: str
    status: Status
    text: str
    """Its status in words, with the next try of a pending one."""


async def read_event(visit: PageVisit, page: EventView) -> Context:
    """Read everything about one event that the visitor may see."""
    history = await _history(visit, page.seq)
    inside = await asyncio.to_thread(content, visit, history, page.body)
    record = await _record(visit, history)
    return {
        "event": history.event,
        "is_damaged": history.is_damaged,
        "content": inside,
        "deliveries": [_state(record, each) for each in history.event.deliveries],
        "timeline": await asyncio.to_thread(timeline, record, before=page.attempts),
        "related": await _related(visit, page.seq),
        "older": await _older(visit, page.seq),
        "newer": await _newer(visit, page.seq),
        "hindrance": _hindrance(history, inside),
        "commands": _commands(visit, history.event) if visit.may_change else (),
    }


async def _history(visit: PageVisit, seq: int) -> History:
    # The API's operation would encode a large body for JSON, which nothing here needs.
    history = await visit.admin.store.events.history(seq)
    if history is None:
        raise HTTPException(404, f"There is no event {seq}.")
    return history


async def _record(visit: PageVisit, history: History) -> DeliveryTimeline:
    event, admin = history.event, visit.admin
    return DeliveryTimeline(
        event=event,
        attempts=history.attempts,
        now_ms=visit.now_ms,
        statuses=admin.sinks.statuses(),
        replays=await _replays(visit, history),
        states=await admin.store.sink_states.since(event.received_ms) if history.attempts else {},
        queue={each.sink: each for each in await admin.store.events.queued(event.seq)},
        give_up_ms={sink.name: sink.retry.give_up_after for sink in admin.config().sinks},
    )


async def _replays(visit: PageVisit, history: History) -> list[Replay]:
    """Return the last replays that opened a delivery of the event."""
    opened = {attempt.replay for attempt in history.attempts}
    opened |= {delivery.replay for delivery in history.event.deliveries}
    numbers = sorted(number for number in opened if number is not None)
    replays = [await visit.admin.store.replays.one(each) for each in numbers[-REPLAYS_SHOWN:]]
    return [replay for replay in replays if replay is not None]


def _state(record: DeliveryTimeline, delivery: DeliveryRecord) -> DeliveryHead:
    text = str(delivery.status)
    if delivery.status is Status.PENDING:
        next_ms, waits = next_try(record, delivery)
        tries = sum(attempt.sink == delivery.sink for attempt in record.attempts)
        if next_ms is None:
            text = waits
        else:
            text = (
                f"pending, try {tries + 1} {relative(max(next_ms, record.now_ms), record.now_ms)}"
            )
    return DeliveryHead(sink=delivery.sink, status=delivery.status, text=text)


async def _related(visit: PageVisit, seq: int) -> Related:
    related: Related = await visit.run(show_related, RelatedTo(seq=seq, limit=RELATED_SHOWN))
    if visit.may_change:
        return related
    # A sender may use anything as a video's id, which stands in the URL of its events.
    hidden = related.video is not None and visit.text(related.video.name) != related.video.name
    return Related(person=None, video=None if hidden else related.video, title=related.title)


async def _older(visit: PageVisit, seq: int) -> int | None:
    page = await visit.run(list_events, Listing(before=seq, limit=1))
    return next((event.seq for event in page.events), None)


async def _newer(visit: PageVisit, seq: int) -> int | None:
    events = await visit.admin.store.events.accepted(seq, limit=1)
    return next((event.number for event in events), None)


def _hindrance(history: History, inside: EventContent) -> str:
    """Say why a replay of the event would deliver nothing; empty if it would."""
    if history.body is None:
        return "The body is gone, so there is nothing to deliver."
    if history.is_damaged:
        return "The stored body is damaged, so it is not delivered."
    if not any(row.takes for row in inside.routes):
        return "No sink takes this event by the config that runs."
    if all(row.is_pending for row in inside.routes if row.takes):
        return "The deliveries are pending, so they need no replay."
    return ""


def _commands(visit: PageVisit, event: EventRecord) -> Sequence[str]:
    return (
        # An id that begins with a hyphen would be taken for an option.
        f"relay replay --id={shlex.quote(event.id)} --source={shlex.quote(event.source)}",
        api_request(visit, f"/events/{event.seq}"),
        api_request(visit, "/replays", {"id": event.id, "source": event.source}),
    )


async def retry(visit: PageVisit, path: EventNumber, chosen: OneSink) -> ActionResult:
    """Make a pending delivery due now."""
    event = (await _history(visit, path.seq)).event
    of_event = MaybeEvent(id=event.id, source=event.source)
    await visit.run(retry_sink, SinkName(name=chosen.sink), of_event)
    return _done(visit, path, Notice(text=f"{chosen.sink} is tried now."))


async def discard(visit: PageVisit, path: EventNumber, chosen: OneSink) -> ActionResult:
    """Discard a pending delivery."""
    event = (await _history(visit, path.seq)).event
    of_event = OneEvent(id=event.id, source=event.source)
    result = await visit.run(discard_delivery, SinkName(name=chosen.sink), of_event)
    text = f"The delivery to {chosen.sink} is discarded; a replay would open it again."
    if result.in_flight:
        text += " An attempt is in flight, so it may still arrive."
    return _done(visit, path, Notice(text=text, tone="warn"))


def _done(visit: PageVisit, path: EventNumber, notice: Notice) -> ActionResult:
    return ActionResult(to=visit.url(f"/events/{path.seq}"), notice=notice)


async def read_body(visit: PageVisit, path: EventNumber) -> bytes:
    """Return the stored bytes."""
    body = (await _history(visit, path.seq)).body
    if body is None:
        raise HTTPException(404, f"The body of event {path.seq} is gone.")
    return body


ROUTES = (
    PageView(
        PATH, read_event, "Event", "event.html", topics=("deliveries", "sinks", "config", "changes")
    ),
    Action(f"{PATH}/retry", retry),
    Action(f"{PATH}/discard", discard),
    Download(f"{PATH}/body", read_body, "event-{seq}.json", admin_only=True),
)
