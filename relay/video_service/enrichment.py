"""What people have watched, asked of the video service's API for sinks with `enrich`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from relay.core.api_settings import ApiSettings
from relay.core.clock import Clock
from relay.core.errors import RelayError
from relay.core.event import THRESHOLDS, Event
from relay.core.watch_history import KeptHistory, WatchedVideo, WatchHistory
from relay.telemetry import log
from relay.telemetry.metrics import Metrics
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.records import Watched
from relay.video_service.history_cache import HistoryCache, PersonKey, person_of

REQUESTS_MAX = 8
"""Requests at once, so that a burst of leads leaves the API to others, too."""

LOOKUP_MAX_S = 10.0
"""Longest time of a look-up; an answer that is late for one message serves the next."""

LOOKUPS_MAX = 256
"""Look-ups at once, those that wait for a request included."""

LINES_MAX = 2
"""Log lines a minute with the same reason."""

ADDRESS_MAX = 320

PAUSE_FIRST_S = 5.0
PAUSE_MAX_S = 300.0


class Viewers(Protocol):
    """The part of an API's client that is asked."""

    @property
    def delay(self) -> Reason | None:
        """Why answers are late now, if anything is known to hold them up."""
        ...

    async def viewer(self, email: str) -> Sequence[Watched]:
        """Return all that a person has watched, nothing for an unknown one; raises RelayError."""
        ...

    async def aclose(self) -> None: ...


class WatchHistories:
    """Fulfils `relay.core.sink.Enricher` for all sinks of a relay.

    A look-up is shared by all who ask for the same person, and its answer is kept for a while.
    After a failure nobody is asked for a while, so that an API that is down delays few messages.
    """

    def __init__(
        self,
        *,
        connect: Callable[[ApiSettings], Viewers],
        is_erased: Callable[[str], Awaitable[bool]],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`is_erased` says whether a person was ever erased; it may raise RelayError."""
        self._connect = connect
        self._is_erased = is_erased
        self._metrics = metrics
        self._settings: Mapping[str, ApiSettings] = {}
        self._clients: dict[str, asyncio.Task[Viewers]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._kept = HistoryCache(clock)
        self._pauses = Pauses(clock)
        self._lines = log.Sampled(clock, limit=LINES_MAX)
        self._running: dict[PersonKey, asyncio.Task[WatchHistory | None]] = {}
        self._requests = asyncio.Semaphore(REQUESTS_MAX)

    def adopt(self, settings: Mapping[str, ApiSettings]) -> None:
        """Ask these APIs from now on, by source; the answers of others are dropped."""
        before, self._settings = self._settings, dict(settings)
        changed = {source for source in before if before[source] != settings.get(source)}
        self._drop(lambda key: key.source in changed)
        for source in changed:
            self._pauses.end(source)
            if (client := self._clients.pop(source, None)) is not None:
                closing = asyncio.create_task(_close(client))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def watch_history(self, event: Event) -> WatchHistory | None:
        """Fulfil `relay.core.sink.Enricher`."""
        address = event.address()
        if event.source not in self._settings or address is None or not _is_address(address):
            return None
        key = PersonKey.of(event.source, address)
        if (history := self._kept.find(key)) is not None:
            return await self._recall(history, address)
        if self._pauses.has(event.source):
            self._metrics.enriched("paused")
            return None
        if key not in self._running and len(self._running) >= LOOKUPS_MAX:
            self._metrics.enriched("busy")
            return None
        return await self._answer(key, address)

    def forget(self, email: str) -> None:
        """Drop a person's histories, and end look-ups that have begun."""
        person = person_of(email)
        self._drop(lambda key: key.person == person)

    def of(self, email: str) -> Sequence[KeptHistory]:
        """Return a person's histories in memory."""
        return self._kept.of(person_of(email))

    async def close(self) -> None:
        """End all look-ups, close all connections, and drop all answers."""
        running = [*self._running.values()]
        self.adopt({})
        if ending := {*running, *self._closing}:
            await asyncio.wait(ending)

    async def _recall(self, history: WatchHistory, address: str) -> WatchHistory | None:
        """Return a kept history, unless the person was erased, maybe through another relay."""
        try:
            is_erased = await self._is_erased(address)
        except RelayError:
            self._metrics.enriched("failed")
            return None
        if is_erased:
            self.forget(address)
            self._metrics.enriched("erased")
            return None
        self._metrics.enriched("cached")
        return history

    async def _answer(self, key: PersonKey, address: str) -> WatchHistory | None:
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(self._look_up(key, address))
            task.add_done_callback(lambda ended: self._on_end(key, ended))
        try:
            # Cancelling this leaves the look-up alone.
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            self._metrics.enriched("late")
            self._fail(key.source, self._reason_of_delay(key.source) or "no answer in time")
            raise
        if task.cancelled():
            return None
        if task.exception() is not None:
            self._metrics.enriched("failed")
            return None
        history = task.result()
        self._metrics.enriched("erased" if history is None else "answered")
        self._pauses.end(key.source)
        return history

    async def _look_up(self, key: PersonKey, address: str) -> WatchHistory | None:
        """Return None for a person who was erased."""
        async with asyncio.timeout(LOOKUP_MAX_S), self._requests:
            if await self._is_erased(address):
                return None
            client = await asyncio.shield(self._client(key.source))
            history = _history(await client.viewer(address))
        self._kept.keep(key, history)
        return history

    def _client(self, source: str) -> asyncio.Task[Viewers]:
        client = self._clients.get(source)
        if client is None or (client.done() and client.exception() is not None):
            # In a thread, because loading certificates would hold up acknowledgements.
            connecting = asyncio.to_thread(self._connect, self._settings[source])
            self._clients[source] = asyncio.create_task(connecting)
        return self._clients[source]

    def _on_end(self, key: PersonKey, task: asyncio.Task[WatchHistory | None]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, RelayError | TimeoutError):
                log.get().error("enrichment.bug", source=key.source, **log.describe(error))
            is_late = isinstance(error, TimeoutError)
            reason = self._reason_of_delay(key.source) if is_late else None
            self._fail(key.source, reason or _reason(error))

    def _reason_of_delay(self, source: str) -> str | None:
        """Say what a look-up waits for, where its time limit alone would hide it."""
        client = self._clients.get(source)
        if client is None or not client.done() or client.cancelled() or client.exception():
            return None
        delay = client.result().delay
        return None if delay is None else str(ServiceApiError(delay))

    def _fail(self, source: str, reason: str) -> None:
        self._lines.line("enrichment.failed", reason=reason, source=source)
        # Look-ups that fail together are one failure.
        if not self._pauses.has(source):
            self._pauses.begin(source)

    def _drop(self, concerns: Callable[[PersonKey], bool]) -> None:
        self._kept.drop(concerns)
        for key in [key for key in self._running if concerns(key)]:
            self._running.pop(key).cancel()


class _Pause(NamedTuple):
    until_s: float
    seconds: float


class Pauses:
    """Tells which sources are asked nothing for now, each time for twice as long as before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pauses: dict[str, _Pause] = {}

    def has(self, source: str) -> bool:
        """Whether the source's pause has not ended yet."""
        pause = self._pauses.get(source)
        return pause is not None and self._clock.monotonic() < pause.until_s

    def begin(self, source: str) -> None:
        """Begin a pause after a failure."""
        last = self._pauses.get(source)
        seconds = PAUSE_FIRST_S if last is None else min(last.seconds * 2, PAUSE_MAX_S)
        self._pauses[source] = _Pause(self._clock.monotonic() + seconds, seconds)

    def end(self, source: str) -> None:
        """End the pause after a success; the next one is a first one again."""
        self._pauses.pop(source, None)


async def _close(client: asyncio.Task[Viewers]) -> None:
    with suppress(Exception):  # of a client that could not be made
        await (await client).aclose()


def _history(watched: Sequence[Watched]) -> WatchHistory:
    return WatchHistory.of(
        WatchedVideo(
            id=each.video_id, title=each.title, milestone=_furthest(each), last_ms=each.last_ms
        )
        for each in watched
    )


def _furthest(watched: Watched) -> str | None:
    """Return the furthest milestone (video-service.md, section 6); None if nothing says it."""
    if watched.finished:
        return "completed"
    if watched.percent is None:
        return None
    reached = (name for name, least in THRESHOLDS.items() if watched.percent >= least)
    return max(reached, key=THRESHOLDS.__getitem__, default=None)


def _reason(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {LOOKUP_MAX_S:g} s"
        case RelayError():
            return str(error)
    return f"a bug in the relay: {type(error).__name__}"


def _is_address(text: str) -> bool:
    # Anyone may write anything into a form.
    return "@" in text and len(text) <= ADDRESS_MAX
