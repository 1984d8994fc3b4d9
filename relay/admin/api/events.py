"""Stored events: a list of them, and the history of one."""

import base64
from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import (
    PROBLEMS,
    Filter,
    Limit,
    Milliseconds,
    Number,
    PageQuery,
    Text,
    selected,
)
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.audience.related import Related
from relay.store.events import AttemptRecord, EventRecord, History, Queued
from relay.store.search import Count


class Listing(PageQuery, frozen=True, kw_only=True):
    """One page of a list, and the milliseconds after which to give up looking for more."""

    within_ms: Milliseconds | None = None


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """One page; `next` is None on the last.

    `looked_to_ms` is the receipt of the oldest event looked at if the time ran out.
    """

    events: Sequence[EventRecord]
    next: int | None
    looked_to_ms: int | None = None


class Counting(Filter, frozen=True, kw_only=True):
    """A filter, and the milliseconds after which to give up counting."""

    within_ms: Milliseconds = 1000


class EventNumber(msgspec.Struct, frozen=True, kw_only=True):
    """One event, by its number in the store."""

    seq: Number


class RelatedTo(EventNumber, frozen=True, kw_only=True):
    """One event, and the maximum number of each kind of relation."""

    limit: Limit = 10


CANDIDATES_MAX = 10


class IdPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """An event id or its beginning."""

    beginning: Text
    source: Text | None = None


class EventMatches(msgspec.Struct, frozen=True, kw_only=True):
    """Events with this id, else with this prefix; `more` if the list is cut off."""

    events: Sequence[EventRecord]
    more: bool


class EventHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One event in full; `headers` and `body` are None once their retention is over."""

    event: EventRecord
    headers: str | None
    body: str | None
    """The body as text; every accepted body is valid UTF-8."""
    body_base64: str | None
    """The stored bytes."""
    is_damaged: bool
    """Whether the stored bytes differ from the received ones, by their digest."""
    attempts: Sequence[AttemptRecord]
    queue: Sequence[Queued] = ()
    """Places of its pending deliveries; empty in a person's data."""


def event_history(history: History, queue: Sequence[Queued] = ()) -> EventHistory:
    """Convert a history to JSON-compatible values."""
    body = history.body
    return EventHistory(
        event=history.event,
        headers=None if history.headers is None else history.headers.decode("latin-1"),
        body=None if body is None else body.decode(errors="replace"),
        body_base64=None if body is None else base64.b64encode(body).decode(),
        is_damaged=history.is_damaged,
        attempts=history.attempts,
        queue=queue,
    )


async def list_events(admin: AdminServices, page: Listing) -> EventList:
    """Stored events, newest first."""
    selection = await selected(admin, page)
    if page.within_ms is not None:
        result = await admin.store.search.find(
            selection, admin.routes, limit=page.limit, budget_s=page.within_ms / 1000
        )
        return EventList(events=result.events, next=result.next, looked_to_ms=result.looked_to_ms)
    events = await admin.store.events.page(selection, admin.routes, limit=page.limit + 1)
    shown, more = events[: page.limit], len(events) > page.limit
    return EventList(events=shown, next=shown[-1].seq if more else None)


async def count_events(admin: AdminServices, counting: Counting) -> Count:
    """Number of stored events."""
    selection = await selected(admin, counting)
    return await admin.store.search.count(
        selection, admin.routes, budget_s=counting.within_ms / 1000
    )


async def show_related(admin: AdminServices, query: RelatedTo) -> Related:
    """Views and leads of the same person and of the same video."""
    related = await admin.store.audience.related(query.seq, limit=query.limit)
    if related is None:
        raise HTTPException(404, f"There is no event {query.seq}.")
    return related


async def find_events(admin: AdminServices, prefix: IdPrefix) -> EventMatches:
    """Stored events by the beginning of their ids."""
    candidates = await admin.store.events.named(
        prefix.beginning, source=prefix.source, limit=CANDIDATES_MAX + 1
    )
    return EventMatches(events=candidates[:CANDIDATES_MAX], more=len(candidates) > CANDIDATES_MAX)


async def show_event(admin: AdminServices, path: EventNumber) -> EventHistory:
    """One event with its body, its deliveries and every attempt."""
    history = await admin.store.events.history(path.seq)
    if history is None:
        raise HTTPException(404, f"There is no event {path.seq}.")
    return event_history(history, await admin.store.events.queued(path.seq))


_MISSING = {404: "There is no such event."}

OPERATIONS = (
    Operation("GET", "/api/v1/events", list_events, PROBLEMS),
    Operation("GET", "/api/v1/events/count", count_events, PROBLEMS),
    Operation("GET", "/api/v1/events/find", find_events),
    Operation("GET", "/api/v1/events/{seq:number}", show_event, _MISSING),
    Operation("GET", "/api/v1/events/{seq:number}/related", show_related, _MISSING),
)
