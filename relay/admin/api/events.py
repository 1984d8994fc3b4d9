"""Stored events: a list of them, and all that is known of one."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.filters import PROBLEMS, selected
from relay.admin.api.parameters import Number, Page, Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.operations import AttemptRecord, EventRecord, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """One page of a list; `next` is None on the last."""

    events: Sequence[EventRecord]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One event, by its number in the store."""

    seq: Number


NAMED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The beginning of an id, or a whole one."""

    beginning: Text
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Events whose ids begin so; where one is just that, no others. `more`: not all are here."""

    events: Sequence[EventRecord]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHistory:
    """One event whole; `headers` and `body` are None once their retention is over."""

    event: EventRecord
    headers: str | None
    body: str | None
    """As text, which every accepted body is."""
    body_base64: str | None
    """The received bytes."""
    is_damaged: bool
    """Whether they are others than were received, by the digest of then."""
    attempts: Sequence[AttemptRecord]


def shown(history: History) -> EventHistory:
    """What is known of an event, in a form that JSON can carry."""
    body = history.body
    return EventHistory(
        event=history.event,
        headers=None if history.headers is None else history.headers.decode("latin-1"),
        body=None if body is None else body.decode(errors="replace"),
        body_base64=None if body is None else base64.b64encode(body).decode(),
        is_damaged=history.is_damaged,
        attempts=history.attempts,
    )


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of events."""

    async def list_events(page: Page) -> Events:
        selection = await selected(admin, page)
        found = await admin.operations.events(selection, admin.routes(), limit=page.limit + 1)
        shown, more = found[: page.limit], len(found) > page.limit
        return Events(events=shown, next=shown[-1].seq if more else None)

    async def find_events(named: Beginning) -> Candidates:
        found = await admin.operations.named(
            named.beginning, source=named.source, limit=NAMED_MAX + 1
        )
        return Candidates(events=found[:NAMED_MAX], more=len(found) > NAMED_MAX)

    async def show_event(which: Which) -> EventHistory:
        history = await admin.operations.history(which.seq)
        if history is None:
            raise HTTPException(404, f"There is no event {which.seq}.")
        return shown(history)

    return (
        Operation(
            method="GET",
            path="/api/v1/events",
            summary="Stored events, the newest first.",
            handler=list_events,
            parameters=Page,
            answer=Events,
            problems=PROBLEMS,
        ),
        Operation(
            method="GET",
            path="/api/v1/events/find",
            summary="Stored events by the beginning of their ids.",
            handler=find_events,
            parameters=Beginning,
            answer=Candidates,
        ),
        Operation(
            method="GET",
            path="/api/v1/events/{seq:number}",
            summary="One event with its body, its deliveries and every attempt.",
            handler=show_event,
            parameters=Which,
            answer=EventHistory,
            problems={404: "There is no such event."},
        ),
    )
