"""Destinations: how long they take, and how they fail."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes, SinkSettings

Mode = Literal["well", "down", "fails", "hangs", "throttles", "forbids", "refuses", "refuses all"]
MODES: tuple[Mode, ...] = (
    "down",
    "fails",
    "hangs",
    "throttles",
    "forbids",
    "refuses",
    "refuses all",
)

_POISONOUS = "x"

_HANG_S = 3600.0
_FAILING_SHARE = 0.3
"""Of the events that a destination refuses, or fails on, while it takes others."""


def poisonous(event: str) -> str:
    """Make an event's id that of one which each destination refuses for ever."""
    return event + _POISONOUS


def is_poisonous(event: str) -> bool:
    return event.endswith(_POISONOUS)


class Destination:
    """One sink's destination, the same for all relays."""

    def __init__(self, settings: SinkSettings, random: Random, *, duration_s: float) -> None:
        self.name = settings.name
        self.settings = settings
        self.mode: Mode = "well"
        self._random = random
        self._duration_s = duration_s

    async def take(self, events: Sequence[str]) -> list[SinkError | None]:
        """Take a batch; return the error that the sink raises for each event."""
        if self.mode == "hangs":
            await asyncio.sleep(_HANG_S)
        await asyncio.sleep(self._duration_s * self._random.uniform(0.3, 1))
        error = self._error()
        is_reached = error is None or error.about_event or isinstance(error, Refused)
        return [Refused("422") if is_reached and is_poisonous(each) else error for each in events]

    def _error(self) -> SinkError | None:
        match self.mode:
            case "down":
                return Temporary("no connection")
            case "throttles":
                return Temporary("too many requests", retry_after_ms=500)
            case "forbids":
                return Misconfigured("401")
            case "fails" if self._random.random() < _FAILING_SHARE:
                return Temporary("500", about_event=True)
            case "refuses all":
                return Refused("400")
            case "refuses" if self._random.random() < _FAILING_SHARE:
                return Refused("400")
            case _:
                return None


class SimulatedSink:
    """A relay's sink for a destination; `begun`, `over` and `took` are told of each send."""

    def __init__(
        self,
        destination: Destination,
        *,
        begun: Callable[[list[str]], None],
        over: Callable[[list[str]], None],
        took: Callable[[Sequence[str], Sequence[SinkError | None]], None],
    ) -> None:
        self._destination = destination
        self._begun = begun
        self._over = over
        self._took = took

    async def send(self, event: Event) -> SinkResponse:
        (outcome,) = await self._send((event,))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _send(self, events: Sequence[Event]) -> Outcomes:
        ids = [event.id for event in events]
        self._begun(ids)
        try:
            errors = await self._destination.take(ids)
            self._took(ids, errors)
        finally:
            self._over(ids)
        return [SinkResponse(200) if error is None else error for error in errors]

    async def check(self) -> None:
        pass

    def render(self, event: Event) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        pass


class SimulatedBatchSink(SimulatedSink):
    """The same for a destination that takes batches."""

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        return await self._send(events)
