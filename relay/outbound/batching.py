"""Batches of events, split into parts that the destination accepts, each event with an outcome."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes

Item = TypeVar("Item")
Send = Callable[[Sequence[Item]], Awaitable[Outcomes]]

Chain = Sequence[Sequence[int]]
"""Parts that are sent one after another; each is a list of positions in the batch."""


class BatchOnlySink(ABC):
    """A sink that sends batches: a single event is a batch of one."""

    @abstractmethod
    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        """As `relay.core.sink.BatchSink` says."""

    async def send(self, event: Event) -> SinkResponse:
        (outcome,) = await self.send_batch((event,))
        if isinstance(outcome, SinkResponse):
            return outcome
        raise outcome


@dataclass(frozen=True, slots=True)
class BatchSplitter(Generic[Item]):
    """Splits and sends the batches of one sink."""

    prepare: Callable[[Event], Item]
    """An error that it raises fails only its event."""
    part: Callable[[Mapping[int, Item]], Iterable[Chain]]
    """Splits the items, keyed by position in the batch, into chains, which are sent in parallel."""
    send: Send[Item]
    """Returns the outcome of each item, in order, or raises an error that applies to all of them.

    Refused means that none of them was taken, and that one of them may be at fault.
    """
    within_s: float
    """Timeout of a chain, in seconds; items without an outcome by then are Temporary."""

    async def deliver(self, events: Sequence[Event]) -> Outcomes:
        """Send all events; a failure of one event, or of one part, fails no other.

        A cancellation stops all further sends.
        """
        batch = _Batch(self.send, self.within_s)
        for place, event in enumerate(events):
            try:
                batch.items[place] = self.prepare(event)
            except Exception as error:  # noqa: BLE001  a bug, too, is this event's alone
                batch.outcomes[place] = error
        if batch.items:
            await batch.follow(*self.part(batch.items))
        return [batch.outcomes[place] for place in range(len(events))]


@dataclass(slots=True)
class _Batch(Generic[Item]):
    """A batch in flight; an item that has an outcome keeps it."""

    send: Send[Item]
    within_s: float
    items: dict[int, Item] = field(default_factory=dict)
    outcomes: dict[int, SinkResponse | Exception] = field(default_factory=dict)

    async def follow(self, first: Chain, *others: Chain) -> None:
        async with asyncio.TaskGroup() as group:
            for chain in others:
                group.create_task(self._follow(chain))
            # Most batches are one chain, which needs no task of its own.
            await self._follow(first)

    async def _follow(self, chain: Chain) -> None:
        try:
            async with asyncio.timeout(self.within_s):
                for part in chain:
                    await self._deliver(part)
        except TimeoutError:
            late = Temporary(f"no answer within {self.within_s:g} s")
            for part in chain:
                for place in part:
                    self.outcomes.setdefault(place, late)

    async def _deliver(self, part: Sequence[int]) -> None:
        result = await self._try(part)
        if isinstance(result, Refused) and len(part) > 1:
            # Halving finds the item at fault quickly; the others are taken.
            middle = len(part) // 2
            await self._deliver(part[:middle])
            await self._deliver(part[middle:])
        elif isinstance(result, Exception):
            self.outcomes.update(dict.fromkeys(part, result))
        else:
            self.outcomes.update(result)

    async def _try(self, part: Sequence[int]) -> Mapping[int, SinkResponse | Exception] | Exception:
        """Return the outcome of each item, or an error that applies to all of them."""
        if is_cancelled():
            # The client swallowed the cancellation and returned a result.
            raise asyncio.CancelledError
        try:
            result = await self.send([self.items[place] for place in part])
            return dict(zip(part, result, strict=True))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        except TimeoutError:
            return Temporary("no answer in time")
        except Exception as error:  # noqa: BLE001  the other parts are sent after a bug, too
            return error


def cut(
    items: Mapping[int, Item], size: Callable[[Item], int], count_max: int, size_max: int
) -> Chain:
    """Fill one part after another; an item above `size_max` gets a part of its own."""
    parts: list[list[int]] = []
    filled = 0
    for place, item in items.items():
        filled += size(item)
        if not parts or filled > size_max or len(parts[-1]) == count_max:
            parts.append([])
            filled = size(item)
        parts[-1].append(place)
    return parts


def is_cancelled() -> bool:
    """Whether the current task was cancelled; if not, a client library has cancelled itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
