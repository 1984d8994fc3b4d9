"""What happens, as it happens: server-sent events."""

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from relay.admin.api.parameters import Number, Text
from relay.admin.api.recorded import Recorded
from relay.admin.operation import FRESH, parameters
from relay.admin.services import AdminServices
from relay.outbound.cloudevents import rfc3339
from relay.telemetry.activity_stream import Activity

PATH = "/api/v1/stream"

TOLD_MAX = 10_000
"""Stored happenings that are recognised when they are published; far more than can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The filter of one stream: a happening has to fit every field that is given."""

    sink: Text | None = None
    kind: Text | None = None
    """A glob, such as `video.*`."""
    since_ms: Number | None = None
    """First the accepted events and the attempts that are stored since then."""

    def wants(self, happening: Activity) -> bool:
        """Whether it fits."""
        if self.sink not in (None, happening.get("sink"), *happening.get("sinks", ())):
            return False
        return self.kind is None or fnmatchcase(happening.get("kind", ""), self.kind)


KINDS = {
    "accepted": "a new event: source, id, kind, and the sinks that get it",
    "duplicate": "the same event again: source, id, kind",
    "conflict": "a known id with another body, of which the first stays: source, id, kind",
    "unreadable": "a verified request without a usable event: source, reason, and the beginning of "
    "its id",
    "refused": "a request that was turned away: source, code, reason",
    "delivered": "a delivery that has ended well: sink, source, id, kind, the far end's own "
    "status, duration_ms, lag_ms, and the replay's number where it was one",
    "retry": "a try that failed and will be repeated: as delivered, with a reason",
    "parked": "a try that is blamed on the sink's settings: as delivered, with a reason",
    "dead": "a delivery that was given up: as delivered, with a reason",
    "state": "a sink's state has changed: sink, state",
    "reload": "the config was read again, because of a reason; outcome taken, with what was added, "
    "changed and removed, or refused, with the keys in faults or with a message",
    "missed": "this watcher was too slow for so many: count",
}
"""What `what` can be, and what comes with it."""

_KINDS = "".join(f"\n- `{what}`: {text}" for what, text in KINDS.items())

DESCRIPTION: dict[str, Any] = {
    "operationId": "watch",
    "summary": "What happens from now on, or from a moment before, one server-sent event each.",
    "parameters": [
        {"name": "sink", "in": "query", "required": False, "schema": {"type": "string"}},
        {"name": "kind", "in": "query", "required": False, "schema": {"type": "string"}},
        {"name": "since_ms", "in": "query", "required": False, "schema": {"type": "integer"}},
    ],
    "responses": {
        "200": {
            "description": "A JSON object a `data:` line; `at` and `at_ms` say when it happened, "
            f"and `what` says what, and what else is in it:\n{_KINDS}",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
}


async def watch(admin: AdminServices, request: Request) -> Response:
    """Answer with a stream that ends when the relay does."""
    asked = parameters(request, Asked)
    if asked.sink is not None and asked.sink not in admin.sinks.conditions():
        raise HTTPException(404, f"There is no sink {asked.sink} in the config.")
    return StreamingResponse(_lines(admin, asked), 200, FRESH, "text/event-stream")


async def _lines(admin: AdminServices, asked: Asked) -> AsyncIterator[bytes]:
    async for happening in _happenings(admin, asked):
        if happening is None:
            yield b": watching\n\n"
        else:
            at = rfc3339(happening["at_ms"])
            yield b"data: " + orjson.dumps({"at": at, **happening}) + b"\n\n"


async def _happenings(admin: AdminServices, asked: Asked) -> AsyncIterator[Activity | None]:
    """Yield stored happenings, then live ones; None marks the moment when the stream is live."""
    if asked.since_ms is None:
        with closing(admin.activity.watch(asked.wants)) as watcher:
            yield None
            async for happening in watcher:
                yield happening
        return
    recorded = Recorded(admin.operations, await admin.operations.mark(asked.since_ms))
    told = deque[Hashable](maxlen=TOLD_MAX)
    # Not watching as yet: a long history takes longer than a watcher may be slow.
    async for happening in recorded.read():
        told.append(_identity(happening))
        if asked.wants(happening):
            yield happening
    with closing(admin.activity.watch(asked.wants)) as watcher:
        async for happening in recorded.read():
            told.append(_identity(happening))
            if asked.wants(happening):
                yield happening
        yield None
        # Rows that were read before they were published come once more.
        repeated = set(told)
        async for happening in watcher:
            if _identity(happening) not in repeated:
                yield happening


def _identity(happening: Activity) -> Hashable:
    return tuple(happening.get(name) for name in ("what", "at_ms", "source", "id", "sink"))
