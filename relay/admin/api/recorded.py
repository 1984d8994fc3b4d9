"""Stored events and attempts in the form of the activity stream."""

import math
from collections.abc import AsyncIterator

from relay.store.events import Accepted, Attempted, Events
from relay.store.replays import Mark
from relay.telemetry.activity_stream import Activity

PAGE_ROWS = 500


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
