"""Past events and attempts, read from the store in the form of the feed."""

import math
from collections.abc import AsyncIterator

from relay.store.operations import Accepted, Attempted, Operations
from relay.store.replays import Mark
from relay.telemetry.activity_stream import Activity

PAGE = 500


class Recorded:
    """Accepted events and attempts; each `read` goes on where the last one has ended."""

    def __init__(self, operations: Operations, mark: Mark) -> None:
        self._operations = operations
        self._event, self._attempt = mark

    async def read(self) -> AsyncIterator[Activity]:
        """Yield everything written by now, in the order of time; raises StoreError."""
        sides = (self._accepted(), self._attempted())
        heads = [await anext(side, None) for side in sides]
        while any(heads):
            at = [head["at_ms"] if head else math.inf for head in heads]
            first = at.index(min(at))
            yield heads[first] or {}
            heads[first] = await anext(sides[first], None)

    async def _accepted(self) -> AsyncIterator[Activity]:
        while page := await self._operations.accepted(self._event, limit=PAGE):
            for each in page:
                yield _of_event(each)
            self._event = page[-1].number

    async def _attempted(self) -> AsyncIterator[Activity]:
        while page := await self._operations.attempted(self._attempt, limit=PAGE):
            for each in page:
                yield _of_attempt(each)
            self._attempt = page[-1].number


def _of_event(event: Accepted) -> Activity:
    return {
        "what": "accepted",
        "at_ms": event.received_ms,
        "source": event.source,
        "id": event.id,
        "kind": event.kind,
        "sinks": event.sinks,
    }


def _of_attempt(attempt: Attempted) -> Activity:
    ended_ms = attempt.started_ms + attempt.duration_ms
    return {
        "what": attempt.result,
        "at_ms": ended_ms,
        "sink": attempt.sink,
        "source": attempt.source,
        "id": attempt.id,
        "kind": attempt.kind,
        "status": attempt.status,
        "reason": attempt.reason,
        "duration_ms": attempt.duration_ms,
        "lag_ms": ended_ms - attempt.received_ms,
        "replay": attempt.replay,
    }
