"""Stored events: a list of them, and all that is known of one."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.values import Number, Page
from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.store.desk import AttemptRecord, EventRecord, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """One page of a list; `next` is None on the last."""

    events: Sequence[EventRecord]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One event, by its number in the store."""

    seq: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHistory:
    """One event whole; `headers` and `body` are None once their retention is over."""

    event: EventRecord
    headers: str | None
    body: str | None
    """As text, which every accepted body is."""
    body_base64: str | None
    """The received bytes."""
    attempts: Sequence[AttemptRecord]


def shown(history: History) -> EventHistory:
    """What is known of an event, in a form that JSON can carry."""
    body = history.body
    return EventHistory(
        event=history.event,
        headers=None if history.headers is None else history.headers.decode("latin-1"),
        body=None if body is None else body.decode(errors="replace"),
        body_base64=None if body is None else base64.b64encode(body).decode(),
        attempts=history.attempts,
    )


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be asked of events."""

    async def list_events(page: Page) -> Events:
        found = await admin.desk.events(page.selection(), before=page.before, limit=page.limit)
        return Events(events=found, next=found[-1].seq if len(found) == page.limit else None)

    async def show_event(which: Which) -> EventHistory:
        history = await admin.desk.history(which.seq)
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
