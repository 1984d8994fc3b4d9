"""Sends the events of a burst in digests, so that they do not bury a channel."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from relay.core.timeouts import Timeout, current_timeout
from relay.sinks.slack.digest import share


class DigestSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`digest` of a sink of type slack."""

    over: int = 5
    """More waiting events than this are sent as a digest."""
    every: Duration = Duration.parse("1m")
    """Pause after a digest, in which nothing is sent."""


_Future = asyncio.Future[SinkResponse]
_Result = SinkResponse | Exception


class Burst:
    """Each `send` waits for the message that holds its event: its own, or a digest."""

    def __init__(
        self,
        settings: DigestSettings,
        *,
        single: Callable[[Event], Awaitable[SinkResponse]],
        digest: Callable[[Sequence[Event]], Awaitable[SinkResponse]],
        interval_s: float,
    ) -> None:
        """`interval_s` is the minimum time between two messages."""
        self._settings = settings
        self._single = single
        self._digest = digest
        self._interval_s = interval_s
        self._waiting: dict[_Future, Event] = {}
        self._timeouts: dict[_Future, Timeout | None] = {}
        """Of all sends without an outcome."""
        self._working: asyncio.Task[None] | None = None
        self._next_s = 0.0

    async def send(self, event: Event) -> SinkResponse:
        """Raises the error of the message."""
        outcome: _Future = asyncio.get_running_loop().create_future()
        self._waiting[outcome] = event
        self._timeouts[outcome] = current_timeout.get()
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        try:
            return await outcome
        finally:
            self._waiting.pop(outcome, None)  # if this send was cancelled
            del self._timeouts[outcome]

    def restart(self) -> None:
        """Begin the timeouts of all sends anew, because a message is posted: they wait for it."""
        for timeout in self._timeouts.values():
            if timeout is not None:
                timeout.restart()

    async def close(self) -> None:
        """Abandon waiting events; may be called twice."""
        working, self._working = self._working, None
        if working is not None:
            working.cancel()
            await asyncio.wait([working])

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        current_timeout.set(self)  # each post restarts it
        while self._waiting:
            await asyncio.sleep(self._next_s - loop.time())
            if batch := self._take():
                pause_s = self._settings.every.seconds if len(batch) > 1 else 0.0
                self._next_s = loop.time() + max(self._interval_s, pause_s)
                result = await self._deliver(batch)
                if isinstance(result, Temporary | Misconfigured):
                    # Slack takes nothing now; when to go on is for the dispatcher to decide.
                    _settle(self._waiting, result)
                    self._waiting.clear()
        self._working = None

    def _take(self) -> dict[_Future, Event]:
        events = list(self._waiting.values())
        count = share(events) if len(events) > self._settings.over else 1
        return {outcome: self._waiting.pop(outcome) for outcome in list(self._waiting)[:count]}

    async def _deliver(self, batch: dict[_Future, Event]) -> _Result:
        """Send one message, or one for each event of a digest that is refused.

        Return the last result.
        """
        events = list(batch.values())
        result: _Result
        try:
            result = await (self._digest(events) if len(events) > 1 else self._single(*events))
        except Exception as error:  # noqa: BLE001  the waiting sends raise it, whatever it is
            result = error
        if isinstance(result, Refused) and len(batch) > 1:
            return await self._deliver_singly(batch, result)
        _settle(batch, result)
        return result

    async def _deliver_singly(self, batch: dict[_Future, Event], result: _Result) -> _Result:
        """The fault of one event must not fail the others."""
        for outcome, event in batch.items():
            await asyncio.sleep(self._interval_s)
            if not outcome.done():
                result = await self._deliver({outcome: event})
            if isinstance(result, Temporary | Misconfigured):
                _settle(batch, result)
                break
        self._next_s = max(self._next_s, asyncio.get_running_loop().time() + self._interval_s)
        return result


def _settle(waiting: Iterable[_Future], result: _Result) -> None:
    for outcome in waiting:
        if outcome.done():
            continue
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)
