"""Sends many events with a rate and a concurrency limit, and counts the results."""

import asyncio
import math
import secrets
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import SystemRandom

import msgspec

from relay.core import sample_events
from relay.core.clock import Clock
from relay.video_service.sender import Sender, SendOutcome, Sent, Watch

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class Tally(msgspec.Struct):
    """Counts of the results so far."""

    count: int
    acknowledged: int = 0
    duplicates: int = 0
    failed: int = 0
    attempts: int = 0
    waiting: int = 0
    """Events between two attempts."""
    seconds: float = 0.0
    failures: Counter[tuple[int | None, str]] = msgspec.field(default_factory=Counter)
    """Failed attempts by status and reason."""
    acknowledgements_s: "array[float]" = msgspec.field(default_factory=lambda: array("d"))

    def add(self, sent: Sent) -> None:
        last = sent.attempts[-1]
        self.acknowledged += last.acknowledged
        self.duplicates += last.acknowledged and last.outcome == "duplicate"
        self.failed += not last.acknowledged
        if last.acknowledged:
            self.acknowledgements_s.append(last.seconds)

    def attempted(self, attempted: SendOutcome) -> None:
        self.attempts += 1
        if not attempted.acknowledged:
            self.failures[attempted.status, attempted.reason] += 1

    @property
    def finished(self) -> int:
        return self.acknowledged + self.failed

    @property
    def rate(self) -> float:
        """Finished events per second."""
        return self.finished / self.seconds if self.seconds > 0 else 0.0

    def latencies_ms(self) -> dict[str, float]:
        """Return nearest-rank quantiles of the acknowledgement times; empty without any."""
        ordered = sorted(self.acknowledgements_s)
        if not ordered:
            return {}
        return {
            name: 1000 * ordered[math.ceil(share * len(ordered)) - 1]
            for name, share in QUANTILES.items()
        }


class OutgoingEvent(msgspec.Struct, frozen=True):
    """A body to send, with its kind and id for the report."""

    kind: str
    id: str
    body: bytes


def sample(kind: str) -> OutgoingEvent:
    """Create a sample event with a new id."""
    event_id = f"evt_{secrets.token_hex(8)}"
    created_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = sample_events.body(kind, event_id=event_id, created_at=created_at, random=SystemRandom())
    return OutgoingEvent(kind, event_id, body)


class Load:
    """Sends events through one sender; `rate` is per second, None for no limit."""

    def __init__(
        self, tally: Tally, *, clock: Clock, rate: float | None = None, concurrency: int = 1
    ) -> None:
        self.tally = tally
        self._clock = clock
        self._rate = rate
        self._free = asyncio.Semaphore(concurrency)

    async def run(
        self,
        sender: Sender,
        events: Iterable[OutgoingEvent],
        watch: Callable[[OutgoingEvent], Watch],
    ) -> None:
        """Send all events; `watch` creates the observer of each."""
        started_s = self._clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for index, event in enumerate(events):
                    await self._pace(started_s, index)
                    await self._free.acquire()
                    group.create_task(self._send_one(sender, event, watch(event)))
        finally:
            self.tally.seconds = self._clock.monotonic() - started_s

    async def wait_for_retry(self, seconds: float) -> None:
        """Wait between two attempts, and let another event use the slot meanwhile."""
        self._free.release()
        self.tally.waiting += 1
        await asyncio.sleep(seconds)
        self.tally.waiting -= 1
        await self._free.acquire()

    async def _send_one(self, sender: Sender, event: OutgoingEvent, watch: Watch) -> None:
        def watched(attempted: SendOutcome, next_s: float | None) -> None:
            self.tally.attempted(attempted)
            watch(attempted, next_s)

        self.tally.add(await sender.send(event.body, watch=watched))
        self._free.release()

    async def _pace(self, started_s: float, index: int) -> None:
        if self._rate is None:
            return
        wait_s = started_s + index / self._rate - self._clock.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
