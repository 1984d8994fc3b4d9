"""A live stream of activities for subscribers, with bounded queues; only counted without any."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from relay.core.clock import Clock

QUEUE_MAX = 1000
"""Queue size of a subscriber; a slow one misses activities and gets their number."""

Activity = dict[str, Any]
"""`what`, `at_ms` and further fields, all JSON values."""

Filter = Callable[[Activity], bool]
Listener = Callable[[Activity], None]


class Subscriber:
    """Iterates over the activities since its creation, until it or the stream is closed."""

    def __init__(self, subscribers: "set[Subscriber]", matches: Filter) -> None:
        self._subscribers = subscribers
        self._subscribers.add(self)
        self._matches = matches
        self._queue: asyncio.Queue[Activity | None] = asyncio.Queue()
        self._missed = 0
        self._missed_ms = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Activity:
        if self._missed and self._queue.empty():
            # Reported right away, because the next activity may be far off.
            return self._missed_count()
        activity = await self._queue.get()
        if activity is None:
            raise StopAsyncIteration
        return activity

    def take(self, activity: Activity) -> None:
        if not self._matches(activity):
            return
        if self._queue.qsize() >= QUEUE_MAX:
            self._missed += 1
            self._missed_ms = activity["at_ms"]
            return
        if self._missed:
            self._queue.put_nowait(self._missed_count())
        self._queue.put_nowait(activity)

    def _missed_count(self) -> Activity:
        count, self._missed = self._missed, 0
        return {"what": "missed", "at_ms": self._missed_ms, "count": count}

    def close(self) -> None:
        self._subscribers.discard(self)
        self._queue.put_nowait(None)


class ActivityStream:
    """Counts each activity, and passes it to the current subscribers without waiting for them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._subscribers: set[Subscriber] = set()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._listeners: dict[str, Listener] = {}
        self._closed = asyncio.Event()

    @property
    def watched(self) -> bool:
        """Whether there are subscribers, so that publishing is worth the work."""
        return bool(self._subscribers)

    @property
    def counts(self) -> Mapping[str, int]:
        """Count of the activities since the start, by `what`."""
        return dict(self._counts)

    def count(self, what: str) -> None:
        """Count an activity that is not published, because no one watches or it has no fields."""
        self._counts[what] += 1

    def publish(self, what: str, *, at_ms: int | None = None, **fields: Any) -> None:
        """Count and publish an activity; fields are JSON values, without secrets or personal data.

        `at_ms` is the stored time of something that the store records too; by default it is now.
        """
        self._counts[what] += 1
        if (listener := self._listeners.get(what)) is not None:
            listener(fields)
        if self._subscribers:
            at_ms = self._clock.now_ms() if at_ms is None else at_ms
            activity = {"what": what, "at_ms": at_ms, **fields}
            for subscriber in self._subscribers:
                subscriber.take(activity)

    def listen(self, what: str, listener: Listener) -> None:
        """Call the one listener to these activities with the fields of each, at once.

        Unlike a subscriber, it does not make publishing the others worth the work.
        """
        self._listeners[what] = listener

    def watch(self, matches: Filter = lambda _: True) -> Subscriber:
        """Subscribe to the activities that match; the caller closes the subscriber."""
        return Subscriber(self._subscribers, matches)

    async def closed_within(self, seconds: float) -> bool:
        """Wait for the stream's end, but not longer; return whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return self._closed.is_set()

    def close(self) -> None:
        """End all subscribers."""
        self._closed.set()
        for subscriber in tuple(self._subscribers):
            subscriber.close()
