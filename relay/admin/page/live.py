"""Topics in which something changed, as server-sent events for open pages.

A page fetches its own view again when one of its topics changes. The stream reads counts, not the
activities themselves, so it costs the relay the same at any load.
"""

from collections.abc import AsyncGenerator, Mapping
from importlib.metadata import version
from typing import Any, Literal, get_args

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from relay.admin.operation import FRESH
from relay.admin.services import AdminServices

INTERVAL_S = 0.25
"""Shortest time between two messages of one stream."""

HEARTBEAT_S = 15.0
"""Longest silence: proxies cut a silent stream after 60 s."""

RETRY_MS = 1000
"""Wait of a browser before it connects again; its own would be 3 s."""

Topic = Literal["events", "deliveries", "sinks", "config", "changes"]

TOPICS: Mapping[str, Topic] = {
    "accepted": "events",
    "duplicate": "events",
    "conflict": "events",
    "unreadable": "events",
    "refused": "events",
    "delivered": "deliveries",
    "retry": "deliveries",
    "parked": "deliveries",
    "dead": "deliveries",
    "state": "sinks",
    "reload": "config",
    "change": "changes",
    "replay": "changes",
}
"""Topic of each activity."""

_HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


async def watch(admin: AdminServices, _: Request) -> Response:
    """Return a stream that ends with the relay."""
    return StreamingResponse(changes(admin), 200, _HEADERS, "text/event-stream")


async def changes(
    admin: AdminServices, *, interval_s: float = INTERVAL_S, heartbeat_s: float = HEARTBEAT_S
) -> AsyncGenerator[bytes, None]:
    """Yield a message when counts have changed, at most once per interval.

    The first one has no topics, and says which relay answers: a page sees by it that the relay was
    restarted.
    """
    monotonic = admin.clock.monotonic
    counts, sent_s = _counts(admin), monotonic()
    hello = {"started_ms": admin.started_ms, "version": version("relay")}
    yield b"retry: %d\n" % RETRY_MS + _message({**hello, "topics": [], "counts": counts})
    while not await admin.activity.closed_within(interval_s):
        previous, counts = counts, _counts(admin)
        if counts != previous:
            sent_s = monotonic()
            topics = [topic for topic in counts if counts[topic] != previous[topic]]
            yield _message({"topics": topics, "counts": counts})
        elif monotonic() - sent_s >= heartbeat_s:
            sent_s = monotonic()
            yield b": idle\n\n"


def _counts(admin: AdminServices) -> dict[Topic, int]:
    counts: dict[Topic, int] = dict.fromkeys(get_args(Topic), 0)
    for what, count in admin.activity.counts.items():
        counts[TOPICS[what]] += count
    return counts


def _message(values: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(values) + b"\n\n"
