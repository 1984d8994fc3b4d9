"""Events that wait side by side go out together; what comes meanwhile makes up the next batch.

A batch is formed by whoever waits, never by a timer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from relay.delivery import Answer
from relay.errors import Refused, Temporary

Item = TypeVar("Item")

Outcomes = Sequence[Answer | Exception]
_Future = asyncio.Future[Answer | Exception]


class Batches(Generic[Item]):
    """The items of a sink that are on their way, and those that wait for their turn."""

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Outcomes]],
        *,
        count: Callable[[Sequence[Item]], int],
        at_once: int,
    ) -> None:
        """`send` returns each item's outcome, in their order, or raises what holds for all.

        `count` says how many of those that wait, from the first one on, make up a batch: at least
        one. `at_once` batches are on their way at most.
        """
        self._send = send
        self._count = count
        self._at_once = at_once
        self._waiting: dict[_Future, Item] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether anything waits or is on its way; if not, this can be thrown away."""
        return bool(self._waiting or self._tasks)

    async def add(self, item: Item) -> Answer:
        """Raises the item's outcome where that is an error."""
        outcome: _Future = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = item
        if len(self._tasks) < self._at_once:
            self._tasks.add(asyncio.create_task(self._work()))
        try:
            found = await outcome
        finally:
            self._waiting.pop(outcome, None)  # who was cancelled wants nothing sent
        if isinstance(found, Answer):
            return found
        raise found

    async def close(self) -> None:
        """Leave what is on its way; may be called twice."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self) -> None:
        while batch := self._next():
            await self._deliver(batch)
        # Before anything else can happen, or what comes then would find nobody to take it.
        self._tasks -= {asyncio.current_task()}

    def _next(self) -> dict[_Future, Item]:
        waiting = [(outcome, item) for outcome, item in self._waiting.items() if not outcome.done()]
        count = self._count([item for _, item in waiting]) if waiting else 0
        batch = dict(waiting[:count])
        self._waiting = dict(waiting[count:])
        return batch

    async def _deliver(self, batch: dict[_Future, Item]) -> None:
        outcomes: Outcomes
        try:
            outcomes = await self._outcomes(batch)
        except Refused as refusal:
            if len(batch) > 1:
                await self._deliver_singly(batch)
                return
            outcomes = [refusal]
        except Exception as error:  # noqa: BLE001  those who wait have to know, whatever it is
            outcomes = [error] * len(batch)
        for future, outcome in zip(batch, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)

    async def _deliver_singly(self, batch: dict[_Future, Item]) -> None:
        """One event's own fault must not fail its neighbours."""
        for future, item in batch.items():
            if not future.done():
                await self._deliver({future: item})

    async def _outcomes(self, batch: dict[_Future, Item]) -> Outcomes:
        """Send, but no longer than anybody waits for it: else a dead far end would fill us up."""
        sending = asyncio.ensure_future(self._send(tuple(batch.values())))
        waiting = set(batch)

        def leave(future: _Future) -> None:
            waiting.discard(future)
            if not waiting:
                sending.cancel()

        for future in batch:
            future.add_done_callback(leave)
        try:
            await asyncio.wait({sending})
        finally:
            sending.cancel()
            await asyncio.wait({sending})
        if sending.cancelled():  # which a client may also do to itself
            raise Temporary("the send was broken off")
        outcomes = sending.result()
        if len(outcomes) != len(batch):
            raise RuntimeError(f"{len(outcomes)} outcomes for {len(batch)} items")
        return outcomes
