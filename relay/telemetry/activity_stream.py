"""What happens, as it happens, for whoever watches: bounded, and free where nobody does."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from relay.core.clock import Clock

QUEUE_MAX = 1000
"""Of one watcher; one that is too slow misses some, and is told how many."""

Activity = dict[str, Any]
"""`what`, `at_ms`, and fields that are JSON values."""

Filter = Callable[[Activity], bool]


class Subscriber:
    """What happens from its making on, in order, until it or the feed is closed."""

    def __init__(self, watchers: "set[Subscriber]", matches: Filter) -> None:
        self._watchers = watchers
        self._watchers.add(self)
        self._matches = matches
        self._queue: asyncio.Queue[Activity | None] = asyncio.Queue()
        self._missed = 0
        self._missed_ms = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Activity:
        if self._missed and self._queue.empty():
            # Told at the place of what was missed, also where nothing more happens for a while.
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
        self._watchers.discard(self)
        self._queue.put_nowait(None)


class ActivityStream:
    """Hands what happens to all who watch at that moment; nobody is waited for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watchers: set[Subscriber] = set()

    @property
    def watched(self) -> bool:
        """Whether it is worth while to put something together."""
        return bool(self._watchers)

    def publish(self, what: str, *, at_ms: int | None = None, **fields: Any) -> None:
        """Tell all watchers; fields are JSON values, without secrets or personal data.

        `at_ms` is the time of what the store has too, as it is there; else it is now.
        """
        if self._watchers:
            at_ms = self._clock.now_ms() if at_ms is None else at_ms
            activity = {"what": what, "at_ms": at_ms, **fields}
            for watcher in self._watchers:
                watcher.take(activity)

    def watch(self, matches: Filter = lambda _: True) -> Subscriber:
        """Begin to watch the activities that match; the caller closes it."""
        return Subscriber(self._watchers, matches)

    def close(self) -> None:
        """Let every watcher end."""
        for watcher in tuple(self._watchers):
            watcher.close()
