"""Events that go out together: in parts that the far end takes, and each with its own outcome."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from relay.delivery import Answer
from relay.errors import Refused, Temporary
from relay.event import Event
from relay.sink import Outcomes

Item = TypeVar("Item")
Send = Callable[[Sequence[Item]], Awaitable[Outcomes]]

Chain = Sequence[Sequence[int]]
"""Parts that go one after the other, each as the places of its items in the batch."""


class Batching(ABC):
    """A sink that sends batches: a single event is a batch of one."""

    @abstractmethod
    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        """As `relay.sink.BatchSink` says."""

    async def send(self, event: Event) -> Answer:
        (outcome,) = await self.send_batch((event,))
        if isinstance(outcome, Answer):
            return outcome
        raise outcome


@dataclass(frozen=True, slots=True)
class Parting(Generic[Item]):
    """How a sink parts its batches."""

    prepare: Callable[[Event], Item]
    """May raise Refused, for this event alone."""
    part: Callable[[Mapping[int, Item]], Iterable[Chain]]
    """Chains of parts over all items, by their places in the batch; chains go side by side."""
    send: Send[Item]
    """Returns each item's outcome, in their order, or raises what holds for all."""
    within_s: float
    """So long for each chain; what was not sent or answered by then is Temporary."""

    async def deliver(self, events: Sequence[Event]) -> Outcomes:
        """Send all of them; nothing is raised but a cancellation."""
        items: dict[int, Item] = {}
        outcomes: dict[int, Answer | Exception] = {}
        for place, event in enumerate(events):
            try:
                items[place] = self.prepare(event)
            except Refused as refusal:
                outcomes[place] = refusal
        chains = list(self.part(items)) if items else []
        if len(chains) == 1:
            await self._follow(chains[0], items, outcomes)
        else:
            async with asyncio.TaskGroup() as group:
                for chain in chains:
                    group.create_task(self._follow(chain, items, outcomes))
        late = Temporary(f"no answer within {self.within_s:g} s")
        return [outcomes.get(place, late) for place in range(len(events))]

    async def _follow(
        self, chain: Chain, items: Mapping[int, Item], outcomes: dict[int, Answer | Exception]
    ) -> None:
        try:
            async with asyncio.timeout(self.within_s):
                for part in chain:
                    found = await judge([items[place] for place in part], self.send)
                    outcomes.update(zip(part, found, strict=True))
        except TimeoutError:
            pass  # those that have no outcome tell


async def judge(items: Sequence[Item], send: Send[Item]) -> Outcomes:
    """Send them together; where that is refused each by itself, as one's fault is not another's."""
    try:
        found = await send(items)
    except Refused as refusal:
        if len(items) == 1:
            return [refusal]
        return [outcome for item in items for outcome in await judge([item], send)]
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001  other parts of the batch have their own outcomes
        return [error] * len(items)
    if len(found) != len(items):
        return [RuntimeError(f"{len(found)} outcomes for {len(items)} events")] * len(items)
    return found


def cut(
    items: Mapping[int, Item], size: Callable[[Item], int], count_max: int, size_max: int
) -> Chain:
    """Fill one part after the other; an item that is too large by itself has one for itself."""
    parts: list[list[int]] = []
    filled = 0
    for place, item in items.items():
        filled += size(item)
        if not parts or filled > size_max or len(parts[-1]) == count_max:
            parts.append([])
            filled = size(item)
        parts[-1].append(place)
    return parts
