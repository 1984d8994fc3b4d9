"""What happens, as it happens: server-sent events."""

from collections.abc import AsyncIterator
from contextlib import closing

import orjson
from starlette.responses import Response, StreamingResponse

from relay.admin.operation import FRESH
from relay.feed import Feed

PATH = "/api/v1/stream"

KINDS = {
    "accepted": "a new event: source, id, kind, and the sinks that get it",
    "duplicate": "the same event again: source, id, kind",
    "conflict": "a known id with another body, of which the first stays: source, id, kind",
    "unreadable": "a verified request without a usable event: source, reason, and the beginning of "
    "its id",
    "refused": "a request that was turned away: source, code, reason",
    "delivered": "a delivery that has ended well: sink, source, id, kind, duration_ms, lag_ms, "
    "and the replay's number where it was one",
    "retry": "a try that failed and will be repeated: as delivered, with a reason",
    "parked": "a try for which the sink was parked: as delivered, with a reason",
    "dead": "a delivery that was given up: as delivered, with a reason",
    "state": "a sink's state has changed: sink, state",
    "reload": "the config was read again, because of a reason; outcome taken, with what was added, "
    "changed and removed, or refused, with the keys in faults or with a message",
    "missed": "this watcher was too slow for so many: count",
}
"""What `what` can be, and what comes with it."""

_KINDS = "".join(f"\n- `{what}`: {text}" for what, text in KINDS.items())

DESCRIPTION = {
    "operationId": "watch",
    "summary": "What happens from now on, one server-sent event each.",
    "responses": {
        "200": {
            "description": "A JSON object a `data:` line; its `what` says what happened, and "
            f"what else is in it:\n{_KINDS}",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
}


async def watch(feed: Feed) -> Response:
    """Answer with a stream that ends when the relay does."""
    return StreamingResponse(_lines(feed), 200, FRESH, "text/event-stream")


async def _lines(feed: Feed) -> AsyncIterator[bytes]:
    with closing(feed.watch()) as watcher:
        # A comment first, so that a client knows at once that it is connected.
        yield b": watching\n\n"
        async for happening in watcher:
            yield b"data: " + orjson.dumps(happening) + b"\n\n"
