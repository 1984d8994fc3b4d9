"""Live activity as server-sent events."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import closing
from fnmatch import fnmatchcase

import msgspec
import orjson
from starlette.responses import Response, StreamingResponse

from relay.admin.api.parameters import Number, Text, unknown
from relay.admin.operation import FRESH, Operation
from relay.admin.services import AdminServices
from relay.core.event import rfc3339
from relay.store.events import Accepted, Attempted, Events
from relay.store.replays import Mark
from relay.telemetry.activity_stream import Activity, Subscriber

PATH = "/api/v1/stream"

SEEN_MAX = 10_000
"""Stored activity remembered to drop its live copies; far more than can overlap."""

HEARTBEAT_S = 15.0
"""Longest silence: a client that has gone is noticed by a write, and proxies cut silent streams."""
PAGE_ROWS = 500


class StreamFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of one stream; every given field must match."""

    sink: Text | None = None
    kind: Text | None = None
    """A glob, such as `video.*`."""
    since_ms: Number | None = None
    """Send the stored events and attempts since then first."""

    def matches(self, happening: Activity) -> bool:
        if self.sink not in (None, happening.get("sink"), *happening.get("sinks", ())):
            return False
        return self.kind is None or fnmatchcase(happening.get("kind", ""), self.kind)


KINDS = {
    "accepted": "a new event: source, id, kind, and its sinks",
    "reconstructed": "an event made from the sender's API: source, id, kind, and its sinks",
    "duplicate": "the same event again: source, id, kind",
    "conflict": "a known id with another body, which is dropped: source, id, kind",
    "unreadable": "a verified request without a usable event: source, reason, and the beginning of "
    "its id",
    "refused": "a refused request: source, code, reason",
    "delivered": "a successful delivery: sink, source, id, kind, the destination's own "
    "status, duration_ms, lag_ms, and the number of its replay, if any",
    "retry": "a failed attempt that will be repeated: as delivered, with a reason",
    "parked": "an attempt that failed because of the sink's settings: as delivered, with a reason",
    "dead": "a new dead letter: as delivered, with a reason",
    "state": "a change of a sink's state: sink, state",
    "reload": "a reload, with its reason; outcome is taken, with the keys added, changed and "
    "removed, or refused, with the keys in faults or a message",
    "missed": "activity that this client was too slow to receive: count",
}
"""Values of `what`, with their fields."""

_KINDS = "".join(f"\n- `{what}`: {text}" for what, text in KINDS.items())


async def watch(admin: AdminServices, chosen: StreamFilter) -> Response:
    """Activity from now on, or from a given time, as server-sent events.

    It ends with the relay, or with its token, which a reload may change.
    """
    known = admin.sinks.statuses()
    if chosen.sink is not None and chosen.sink not in known:
        raise unknown("sink", chosen.sink, list(known))
    return StreamingResponse(_lines(admin, chosen), 200, FRESH, "text/event-stream")


async def _lines(admin: AdminServices, chosen: StreamFilter) -> AsyncIterator[bytes]:
    token = admin.config().admin.token
    async for happening in _happenings(admin, chosen):
        if admin.config().admin.token != token:
            return
        if happening is None:
            yield b": watching\n\n"
        else:
            at = rfc3339(happening["at_ms"])
            yield b"data: " + orjson.dumps({"at": at, **happening}) + b"\n\n"


async def _happenings(admin: AdminServices, chosen: StreamFilter) -> AsyncIterator[Activity | None]:
    """Yield stored activity, then live activity; None marks the change, and a silence."""
    if chosen.since_ms is None:
        with closing(admin.activity.watch(chosen.matches)) as watcher:
            yield None
            async for happening in _live(watcher):
                yield happening
        return
    recorded = Recorded(admin.store.events, await admin.store.events.mark(chosen.since_ms))
    seen = deque[Hashable](maxlen=SEEN_MAX)
    # Read before subscribing, because a long history would overrun the subscriber's queue.
    async for happening in recorded.read():
        seen.append(_identity(happening))
        if chosen.matches(happening):
            yield happening
    with closing(admin.activity.watch(chosen.matches)) as watcher:
        async for happening in recorded.read():
            seen.append(_identity(happening))
            if chosen.matches(happening):
                yield happening
        yield None
        # Rows that were read before they were published come again.
        repeated = set(seen)
        async for happening in _live(watcher):
            if happening is None or _identity(happening) not in repeated:
                yield happening


async def _live(watcher: Subscriber) -> AsyncIterator[Activity | None]:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                happening = await anext(watcher)
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        else:
            yield happening


def _identity(happening: Activity) -> Hashable:
    return tuple(happening.get(name) for name in ("what", "at_ms", "source", "id", "sink"))


class Recorded:
    """Reads accepted events and attempts; each `read` continues after the last one."""

    def __init__(self, events: Events, mark: Mark) -> None:
        self._events = events
        self._event, self._attempt = mark

    async def read(self) -> AsyncIterator[Activity]:
        """Yield everything stored so far, ordered by time; raises StoreError."""
        sides = (self._accepted(), self._attempted())
        heads = [await anext(side, None) for side in sides]
        while any(heads):
            times_ms = [head["at_ms"] if head else math.inf for head in heads]
            first = times_ms.index(min(times_ms))
            yield heads[first] or {}
            heads[first] = await anext(sides[first], None)

    async def _accepted(self) -> AsyncIterator[Activity]:
        while page := await self._events.accepted(self._event, limit=PAGE_ROWS):
            for event in page:
                yield _of_event(event)
            self._event = page[-1].number

    async def _attempted(self) -> AsyncIterator[Activity]:
        while page := await self._events.attempted(self._attempt, limit=PAGE_ROWS):
            for attempt in page:
                yield _of_attempt(attempt)
            self._attempt = page[-1].number


def _of_event(event: Accepted) -> Activity:
    return {
        "what": "reconstructed" if event.reconstructed else "accepted",
        "at_ms": event.received_ms,
        "source": event.source,
        "id": event.id,
        "kind": event.kind,
        "sinks": event.sinks,
    }


def _of_attempt(attempt: Attempted) -> Activity:
    finished_ms = attempt.started_ms + attempt.duration_ms
    return {
        "what": attempt.result,
        "at_ms": finished_ms,
        "sink": attempt.sink,
        "source": attempt.source,
        "id": attempt.id,
        "kind": attempt.kind,
        "status": attempt.status,
        "reason": attempt.reason,
        "duration_ms": attempt.duration_ms,
        "lag_ms": finished_ms - attempt.received_ms,
        "replay": attempt.replay,
    }


OPERATIONS = (
    Operation(
        "GET",
        PATH,
        watch,
        {404: "There is no such sink in the config."},
        stream={
            "description": "One JSON object per `data:` line; `at` and `at_ms` are its time, and "
            f"`what` its kind, which decides on the other fields:\n{_KINDS}",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    ),
)
