"""Records that are produced together, and their outcomes: shared by all parts of the sink."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

from relay.core.delivery import SinkResponse


class KafkaRecord(NamedTuple):
    """One event as Kafka takes it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, str | bytes | None]]


Outcome = SinkResponse | Exception | None


class ProduceBatch:
    """Collects the outcomes of records that were produced together."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop = asyncio.get_running_loop()
        self.outcomes: dict[int, Outcome] = {}
        self.complete: asyncio.Future[None] = self._loop.create_future()

    def add(self, number: int, outcome: Outcome) -> None:
        """Called in the loop's thread and in the client's, each for other records."""
        self.outcomes[number] = outcome
        if len(self.outcomes) == self._count:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits
                self._loop.call_soon_threadsafe(self._set_complete)

    def _set_complete(self) -> None:
        # Both threads may have added the last outcome at once.
        if not self.complete.done():
            self.complete.set_result(None)
