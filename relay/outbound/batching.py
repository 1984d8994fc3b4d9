"""Batches of events, split into parts that the destination accepts, each event with an outcome.

The dispatcher makes the batches, from its prefetched deliveries when a slot is free. A sink that
gathered single sends would pay for a task, a timeout and a future per event, which cost more than
most brokers take for it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, Temporary
from relay.core.event import Event
from relay.core.large_bodies import LARGE_BYTES, BodyWorker
from relay.core.sink import Outcomes, SinkSettings
from relay.core.timeouts import Limit, RequestTimeout

T = TypeVar("T")

Chain = Sequence[Sequence[int]]
"""Parts that are sent one after another; each is a list of positions in the batch."""


class BatchOnlySink(ABC):
    """A sink that sends batches: a single event is a batch of one."""

    @abstractmethod
    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        """Fulfil `relay.core.sink.BatchSink`."""

    async def send(self, event: Event) -> SinkResponse:
        (outcome,) = await self.send_batch((event,))
        if isinstance(outcome, SinkResponse):
            return outcome
        raise outcome


class Entry(msgspec.Struct, frozen=True):
    """One event as a request holds it."""

    content: Any
    size: int
    """In bytes, as the destination's limit counts it."""
    target: str = ""
    key: str = ""


Entries = Mapping[int, Entry]
"""By the event's place in the batch."""


class SplittingSink(BatchOnlySink):
    """Splits its batches into parts; the failure of an event or a part affects no other."""

    def __init__(self, settings: SinkSettings) -> None:
        self._timeout_s = settings.timeout.seconds
        """Of each part; the rest of a chain whose part has no answer by then is not sent."""

    @abstractmethod
    def _prepare(self, event: Event) -> Entry:
        """Prepare an entry; an exception is the outcome of this event only."""

    @abstractmethod
    def _split(self, entries: Entries) -> Iterable[Chain]:
        """Return chains of parts over all entries, by their places; chains are sent in parallel."""

    @abstractmethod
    async def _send_part(self, entries: Sequence[Entry]) -> Outcomes:
        """Return the outcome of each entry, in order, or raise the error of all.

        Refused means that none was accepted, perhaps because of a single one.
        """

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        entries, failures = await prepare(self._prepare, events)
        batch = _Batch(self._send_part, self._timeout_s, entries, {**failures})
        if entries:
            await batch.follow(*self._split(entries))
        return [batch.outcomes[place] for place in range(len(events))]


class _Batch(msgspec.Struct):
    """One batch in flight; an entry that has an outcome keeps it."""

    send: Callable[[Sequence[Entry]], Awaitable[Outcomes]]
    within_s: float
    entries: Entries
    outcomes: dict[int, SinkResponse | Exception]

    async def follow(self, first: Chain, *others: Chain) -> None:
        async with asyncio.TaskGroup() as group:
            for chain in others:
                group.create_task(self._follow(chain))
            # Most batches are one chain, which needs no task of its own.
            await self._follow(first)

    async def _follow(self, chain: Chain) -> None:
        try:
            for part in chain:
                await self._deliver(part)
        except TimeoutError:
            late = Temporary(Limit(self.within_s).reason())
            for part in chain:
                for place in part:
                    self.outcomes.setdefault(place, late)

    async def _deliver(self, part: Sequence[int]) -> None:
        """Raises TimeoutError where the time was over before the answer came."""
        limit = RequestTimeout(self.within_s)
        result = await self._try(part, limit)
        match result:
            case Refused() if len(part) > 1 and limit.expired():
                pass  # the time is over: the one at fault is not sought
            case Refused() if len(part) > 1:
                # Halving finds the entry at fault quickly; the others are taken.
                middle = len(part) // 2
                await self._deliver(part[:middle])
                await self._deliver(part[middle:])
            case Exception():
                self.outcomes.update(dict.fromkeys(part, result))
            case _:
                self.outcomes.update(result)
        if limit.expired():
            raise TimeoutError

    async def _try(
        self, part: Sequence[int], limit: RequestTimeout
    ) -> Mapping[int, SinkResponse | Exception] | Exception:
        """Return the outcome of each entry, or an error that applies to all of them."""
        if is_cancelled():
            # The client swallowed the cancellation and returned a result.
            raise asyncio.CancelledError
        try:
            async with limit:
                result = await self.send([self.entries[place] for place in part])
            return dict(zip(part, result, strict=True))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        except TimeoutError:
            return Temporary(limit.reason() if limit.expired() else "no answer in time")
        except Exception as error:  # noqa: BLE001  the other parts are sent after a bug, too
            return error


_worker = BodyWorker("messages", large_bytes=4 * LARGE_BYTES)
"""One for all sinks. A batch may have hundreds of small bodies."""

Prepared = tuple[dict[int, T], dict[int, Exception]]


async def prepare(make: Callable[[Event], T], events: Sequence[Event]) -> Prepared[T]:
    """Return what `make` returns or raises for each event, both by the event's place.

    It is called on a thread where the bodies are large.
    """
    size = sum(len(event.body) for event in events)
    return await _worker.run(size, partial(_prepare, make, events))


def _prepare(make: Callable[[Event], T], events: Sequence[Event]) -> Prepared[T]:
    made: dict[int, T] = {}
    failures: dict[int, Exception] = {}
    for place, event in enumerate(events):
        try:
            made[place] = make(event)
        except Exception as error:  # noqa: BLE001  a bug, too, is this event's alone
            failures[place] = error
    return made, failures


def cut(entries: Entries, count_max: int, size_max: int) -> Chain:
    """Fill one part after another; an entry above `size_max` gets a part of its own."""
    parts: list[list[int]] = []
    filled = 0
    for place, entry in entries.items():
        filled += entry.size
        if not parts or filled > size_max or len(parts[-1]) == count_max:
            parts.append([])
            filled = entry.size
        parts[-1].append(place)
    return parts


def is_cancelled() -> bool:
    """Whether the current task was cancelled; if not, a client library has cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
