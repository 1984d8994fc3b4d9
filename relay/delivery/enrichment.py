"""Adds watch histories to leads, and removes them where a destination refuses them.

The dispatcher asks before the send, so that no sink waits for another service within its own time
limit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec.structs import replace

from relay.core.delivery import SinkResponse
from relay.core.errors import Refused
from relay.core.event import Event
from relay.core.sink import Enricher, SinkSettings
from relay.core.watch_history import WatchHistory
from relay.delivery.attempt import AttemptResult
from relay.telemetry import log

FAILURES_MAX = 2
"""Errors with which a destination may answer an enriched event; then it is sent without.

A firewall may reject a header, and the event must arrive all the same.
"""

DISLIKED_MAX = 1024
"""Events whose failures are remembered; the oldest are forgotten first."""

_Attempt = Callable[[Sequence[Event]], Awaitable[list[AttemptResult]]]


class BatchEnrichment(msgspec.Struct):
    """Enriches one sink's batches."""

    settings: SinkSettings
    enricher: Enricher
    _failures: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    """Failures of enriched events by (source, id), as far as the destination responded."""

    async def enrich(self, events: Sequence[Event]) -> list[Event]:
        """Return the events; leads have a history if it is known within the time limit."""
        lookups = {
            asyncio.create_task(self.enricher.watch_history(event)): place
            for place, event in enumerate(events)
            if self._wants(event)
        }
        enriched = list(events)
        if not lookups:
            return enriched
        try:
            done, _ = await asyncio.wait(lookups, timeout=self.settings.enrich_timeout.seconds)
        finally:
            for task in lookups:
                task.cancel()
        for task in done:
            if (history := self._outcome(task)) is not None:
                place = lookups[task]
                enriched[place] = replace(events[place], watch_history=history)
        return enriched

    async def attempt(self, events: Sequence[Event], attempt: _Attempt) -> list[AttemptResult]:
        """Make an attempt; an enriched event that is refused for good is sent again without."""
        results = await attempt(events)
        refusals: dict[int, Refused] = {}
        for place, (event, (_, error)) in enumerate(zip(events, results, strict=True)):
            if event.watch_history is None or error is None:
                continue
            if isinstance(error, Refused):
                refusals[place] = error
            elif error.about_event:
                self._count(event)
        if refusals:
            plain = [replace(events[place], watch_history=None) for place in refusals]
            again = await attempt(plain)
            for (place, refusal), result in zip(refusals.items(), again, strict=True):
                self._count(events[place], FAILURES_MAX)
                results[place] = _after(refusal, result)
        return results

    def _wants(self, event: Event) -> bool:
        failures = self._failures.get((event.source, event.id), 0)
        return failures < FAILURES_MAX and self.settings.enriches(event)

    def _outcome(self, task: asyncio.Task[WatchHistory | None]) -> WatchHistory | None:
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            log.get().error("enrichment.bug", sink=self.settings.name, **log.describe(error))
            return None
        return task.result()

    def _count(self, event: Event, failures: int = 1) -> None:
        identity = (event.source, event.id)
        self._failures[identity] = self._failures.pop(identity, 0) + failures
        if len(self._failures) > DISLIKED_MAX:
            del self._failures[next(iter(self._failures))]


def _after(refusal: Refused, result: AttemptResult) -> AttemptResult:
    """Note in a success that it was the second send."""
    response, error = result
    if error is not None:
        return result
    note = f"(without what the person has watched, which was refused: {refusal.reason})"
    return SinkResponse(response.status, f"{response.excerpt} {note}".strip()), None
