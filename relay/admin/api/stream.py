"""What happens, as it happens: server-sent events."""

from collections.abc import AsyncIterator
from contextlib import closing

import orjson
from starlette.responses import Response, StreamingResponse

from relay.admin.operation import FRESH
from relay.feed import Feed

PATH = "/api/v1/stream"

DESCRIPTION = {
    "operationId": "watch",
    "summary": "What happens from now on, one server-sent event each.",
    "responses": {
        "200": {
            "description": "A JSON object a `data:` line; its `what` says what happened.",
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
