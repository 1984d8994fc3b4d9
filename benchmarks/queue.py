"""What a benchmark asks of a broker: a server, a sink's table, and loops on the bare client.

A bare loop publishes what the sink's `render` shows, under the same settings of proof.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

T = TypeVar("T")


class Message(NamedTuple):
    """What one event becomes: the sink's rendering, and the body's bytes."""

    shown: dict[str, Any]
    body: bytes


Loop = Callable[[Sequence[Message], int], Coroutine[Any, Any, float]]
"""Publish all of them with this many unconfirmed at once; return the seconds, once connected."""


class Broker(ABC):
    """One real server in a folder; `name` is its sink's type."""

    name: ClassVar[str]
    most: ClassVar[int] = 1_000_000
    """Number of messages that it takes before it slows down."""

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Start it; raises pytest's Skipped where it is not installed."""

    @abstractmethod
    def stop(self) -> None:
        """End it; may be called before `start`."""

    @abstractmethod
    def empty(self) -> None:
        """Make the queue, or make it anew."""

    @abstractmethod
    def table(self) -> dict[str, Any]:
        """Give the sink's keys for the present queue."""

    @abstractmethod
    def loops(self) -> dict[str, Loop]:
        """Name what a hand-written program would try."""

    @abstractmethod
    def held(self) -> int:
        """Count the messages in the queue."""


def batches(messages: Sequence[Message], size: int) -> list[Sequence[Message]]:
    return [messages[start : start + size] for start in range(0, len(messages), size)]


async def timed(send: Callable[[T], Awaitable[None]], items: Sequence[T], *, workers: int) -> float:
    todo = iter(items)

    async def worker() -> None:
        for item in todo:
            await send(item)

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(worker())
    return time.monotonic() - started
