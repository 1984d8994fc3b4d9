"""Topics in which something changed, as server-sent events for open pages.

A page fetches its own view again when one of its topics changes. The stream reads counts, not the
activities themselves, so it costs the relay the same at any load.

The page's script is the relay's own. Libraries that do the same took several times as much of a
tab, and kept less of what a person had typed or opened.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, get_args

import msgspec
import orjson
from starlette.responses import Response, StreamingResponse

from relay import __version__
from relay.admin.operation import FRESH
from relay.admin.services import AdminServices

INTERVAL_S = 0.25
"""Shortest time between two messages of one stream."""

HEARTBEAT_S = 15.0
"""Longest silence: proxies cut a silent stream after 60 s."""

RETRY_MS = 1000
"""Wait of a browser before it connects again; its own would be 3 s."""

OPEN_MAX = 24
"""Streams at once: fewer than the connections that the listener gives one address."""

OWN_MAX = 8
"""Streams of one session: a browser opens six at most, and some may have been left behind."""

Topic = Literal["events", "deliveries", "sinks", "config", "changes"]
EVERY_TOPIC: Sequence[Topic] = get_args(Topic)

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
    "reconciliation": "changes",
    "reconstructed": "events",
    "arrived elsewhere": "events",
    "settled elsewhere": "deliveries",
    "state elsewhere": "sinks",
}
"""Topic of each activity."""

Counts = tuple[Mapping[Topic, int], int]
"""Activities by topic, and accepted events, both since the start."""

_HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


class LiveStream(msgspec.Struct, eq=False):
    """One open stream; it ends itself soon after `is_ended` is set."""

    owner: bytes | None
    """Identifier of the session; None without one."""
    is_ended: bool = False


class Streams:
    """The open streams; they leave connections of the listener to others, such as scrapers."""

    def __init__(self) -> None:
        self._open: list[LiveStream] = []

    def open(
        self,
        admin: AdminServices,
        owner: bytes | None,
        is_authorized: Callable[[], Awaitable[bool]],
    ) -> Response:
        """Return a stream that ends with the relay, or when its owner loses access.

        One too many ends the oldest of the session with the most; its page connects again.
        """
        self._make_room(owner)
        stream = LiveStream(owner)
        self._open.append(stream)
        lines = self._lines(admin, stream, is_authorized)
        return StreamingResponse(lines, 200, _HEADERS, "text/event-stream")

    def _make_room(self, owner: bytes | None) -> None:
        counts = Counter(each.owner for each in self._open)
        if counts[owner] >= OWN_MAX:
            self._end_oldest(owner)
        elif len(self._open) >= OPEN_MAX:
            self._end_oldest(max(counts, key=counts.__getitem__))

    def _end_oldest(self, owner: bytes | None) -> None:
        oldest = next(each for each in self._open if each.owner == owner)
        oldest.is_ended = True
        self._open.remove(oldest)

    async def _lines(
        self, admin: AdminServices, stream: LiveStream, is_authorized: Callable[[], Awaitable[bool]]
    ) -> AsyncGenerator[bytes, None]:
        checked_s = admin.clock.monotonic()
        try:
            async with aclosing(changes(admin, stream)) as lines:
                async for line in lines:
                    yield line
                    if admin.clock.monotonic() - checked_s >= HEARTBEAT_S:
                        checked_s = admin.clock.monotonic()
                        stream.is_ended = stream.is_ended or not await is_authorized()
        finally:
            with suppress(ValueError):
                self._open.remove(stream)


async def changes(
    admin: AdminServices,
    stream: LiveStream,
    *,
    interval_s: float = INTERVAL_S,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncGenerator[bytes, None]:
    """Yield a message when counts have changed, at most once per interval.

    The first one has no topics, and says which relay answers: a page sees by it that the relay was
    restarted.
    """
    monotonic = admin.clock.monotonic
    counts, sent_s = _counts(admin), monotonic()
    hello = {"started_ms": admin.started.first_ms, "version": __version__}
    yield b"retry: %d\n" % RETRY_MS + _message({**hello, **_said([], counts)})
    while not stream.is_ended and not await admin.activity.closed_within(interval_s):
        previous, counts = counts, _counts(admin)
        if counts != previous:
            sent_s = monotonic()
            topics = [topic for topic in counts[0] if counts[0][topic] != previous[0][topic]]
            yield _message(_said(topics, counts))
        elif monotonic() - sent_s >= heartbeat_s:
            sent_s = monotonic()
            # The script cannot see a comment, and takes silence for a lost connection.
            yield _message(_said([], counts))


def _counts(admin: AdminServices) -> Counts:
    counts: dict[Topic, int] = dict.fromkeys(EVERY_TOPIC, 0)
    activities = admin.activity.counts
    for what, count in activities.items():
        counts[TOPICS[what]] += count
    return counts, activities.get("accepted", 0)


def _said(topics: Sequence[Topic], counts: Counts) -> Mapping[str, Any]:
    by_topic, accepted = counts
    return {"topics": topics, "counts": by_topic, "accepted": accepted}


def _message(values: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(values) + b"\n\n"
