"""Keeps a burst of events from burying a channel: singly while they are few, else summed up."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused
from relay.core.event import Event
from relay.sinks.slack.digest import share


class DigestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`digest` of a sink of type slack."""

    over: int = 5
    """So many waiting events are still sent singly."""
    every: Duration = Duration.parse("1m")
    """One digest in so much time; nothing is sent in between."""


_Future = asyncio.Future[SinkResponse]


class Burst:
    """Every `send` waits for the message that its event is in, its own or a digest's."""

    def __init__(
        self,
        settings: DigestSettings,
        *,
        single: Callable[[Event], Awaitable[SinkResponse]],
        summed_up: Callable[[Sequence[Event]], Awaitable[SinkResponse]],
        interval_s: float,
    ) -> None:
        """Two messages are at least `interval_s` apart."""
        self._settings = settings
        self._single = single
        self._summed_up = summed_up
        self._interval_s = interval_s
        self._waiting: dict[_Future, Event] = {}
        self._working: asyncio.Task[None] | None = None
        self._next_s = 0.0

    async def send(self, event: Event) -> SinkResponse:
        """Raises what the message was answered with."""
        outcome: _Future = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = event
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await outcome
        finally:
            self._waiting.pop(outcome, None)  # who was cancelled wants nothing sent

    async def close(self) -> None:
        """Leave what waits; may be called twice."""
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.wait([working])

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(self._next_s - loop.time())
            batch = self._take()
            if len(batch) > 1:
                self._next_s = loop.time() + max(self._interval_s, self._settings.every.seconds)
                await self._deliver_summed_up(batch)
            else:
                self._next_s = loop.time() + self._interval_s
                await self._deliver_singly(batch)
        self._working = None

    def _take(self) -> dict[_Future, Event]:
        waiting = list(self._waiting.items())
        count = len(waiting)
        taken = share(list(self._waiting.values())) if count > self._settings.over else 1
        batch = dict(waiting[:taken])
        for outcome in batch:
            del self._waiting[outcome]
        return batch

    async def _deliver_summed_up(self, batch: dict[_Future, Event]) -> None:
        try:
            answer = await self._summed_up(list(batch.values()))
        except Refused:
            # One event's own fault must not fail its neighbours: each has its own message then.
            for outcome, event in batch.items():
                await asyncio.sleep(self._interval_s)
                await self._deliver_singly({outcome: event})
        except Exception as error:  # noqa: BLE001  those who wait have to know, whatever it is
            _tell(batch, error)
        else:
            _tell(batch, answer)

    async def _deliver_singly(self, batch: dict[_Future, Event]) -> None:
        for outcome, event in batch.items():
            if outcome.done():
                continue
            try:
                _tell([outcome], await self._single(event))
            except Exception as error:  # noqa: BLE001  as above
                _tell([outcome], error)


def _tell(outcomes: Iterable[_Future], result: SinkResponse | Exception) -> None:
    for outcome in outcomes:
        if outcome.done():
            continue
        if isinstance(result, SinkResponse):
            outcome.set_result(result)
        else:
            outcome.set_exception(result)
