"""A dispatcher on a real store, with a sink that follows a script."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from relay.core import sample_events
from relay.core.acceptance import THRESHOLD, Backpressure
from relay.core.config_values import Duration, Rate
from relay.core.delivery import Delivery, Settlement, SinkResponse
from relay.core.delivery_credit import ACKNOWLEDGEMENTS_PER_DELIVERY
from relay.core.errors import Temporary
from relay.core.event import LEAD_CAPTURED, Event, Outcome
from relay.core.retry import RetryPolicy
from relay.core.routing import Verdict
from relay.core.sink import BatchSettings, BatchSink, Enricher, Outcomes, SinkSettings
from relay.delivery.dispatcher import Dispatcher
from relay.store import LeasedBatch, Offer, Tier
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from tests.store.places import opened
from tests.virtual_time import LoopClock

SINK = "sales"
DOWN = Temporary("connection refused")
HOUR_S = 3600.0
Reply = Exception | SinkResponse | float | Callable[[], Awaitable[SinkResponse]]


def now_s() -> float:
    return asyncio.get_running_loop().time()


def taken(sink: str = SINK) -> tuple[Verdict, ...]:
    return (Verdict(sink, "takes", "events and sources match"),)


def lead(event_id: str, *, received_ms: int, source: str = "main") -> Event:
    event = sample_events.event(LEAD_CAPTURED, source=source, event_id=event_id)
    return replace(event, received_ms=received_ms)


class SendingSink:
    """A sink whose `send` a subclass adds; the rest does nothing."""

    async def check(self) -> None:
        pass

    def render(self, event: Event) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        pass


class ScriptedSink(SendingSink):
    """Follows a script: raises an error, or sleeps a number of seconds; afterwards always 200."""

    def __init__(self) -> None:
        self.always: Reply = SinkResponse(200, "ok")
        self.sent: list[tuple[float, str]] = []
        """When each send began, and the event's id."""
        self.done: list[tuple[float, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._replies: dict[str, deque[Reply]] = defaultdict(deque)
        self._next: deque[Reply] = deque()

    def reply(self, *replies: Reply, to: str | None = None) -> None:
        """Set the replies to the next sends, of one event or of any."""
        (self._next if to is None else self._replies[to]).extend(replies)

    @property
    def ids(self) -> list[str]:
        return [event_id for _, event_id in self.sent]

    @property
    def times(self) -> list[float]:
        return [at_s for at_s, _ in self.sent]

    async def send(self, event: Event) -> SinkResponse:
        loop = asyncio.get_running_loop()
        self.sent.append((loop.time(), event.id))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            answer = await self._answer(self._reply_for(event.id))
            self.done.append((loop.time(), event.id))
            return answer
        finally:
            self.in_flight -= 1

    def _reply_for(self, event_id: str) -> Reply:
        for replies in (self._replies[event_id], self._next):
            if replies:
                return replies.popleft()
        return self.always

    async def _answer(self, reply: Reply) -> SinkResponse:
        match reply:
            case Exception():
                raise reply
            case float() | int():
                await asyncio.sleep(reply)
                return SinkResponse(200, "late")
            case SinkResponse():
                return reply
            case _:
                return await reply()


class ScriptedBatches(ScriptedSink):
    """Takes batches, and answers each of their events by the script."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.outcomes: Callable[[Outcomes], Outcomes] = lambda outcomes: outcomes
        """Changes the outcomes of a batch, or raises."""

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        self.batches.append([event.id for event in events])
        found = await asyncio.gather(*map(self.send, events), return_exceptions=True)
        return self.outcomes([each for each in found if isinstance(each, SinkResponse | Exception)])


class Watched:
    """Counts concurrent leases of a store, and raises the errors that a test has queued."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.held: set[int] = set()
        self.most_held = 0
        self.leases = 0
        self.lease_errors: deque[Exception] = deque()
        self.settle_errors: deque[Exception] = deque()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """Runs once, after a lease and before the dispatcher gets it."""

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> LeasedBatch:
        self.leases += 1
        if self.lease_errors:
            raise self.lease_errors.popleft()
        lease = await self._store.lease(sink, now_ms=now_ms, limits=limits)
        self.held |= {delivery.seq for delivery in lease.deliveries}
        self.most_held = max(self.most_held, len(self.held))
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return lease

    async def accept(
        self,
        event: Event,
        verdicts: Sequence[Verdict],
        stored: Callable[[Outcome], None],
        offer: Offer | None = None,
    ) -> Outcome:
        def counted(delivery: Delivery) -> bool:
            is_taken = offer is not None and offer(delivery)
            if is_taken:
                self.held.add(delivery.seq)
                self.most_held = max(self.most_held, len(self.held))
            return is_taken

        return await self._store.accept(event, verdicts, stored, counted)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._store.release(deliveries)
        self.held -= {delivery.seq for delivery in deliveries}

    async def settle(self, *settlements: Settlement) -> None:
        if self.settle_errors:
            raise self.settle_errors.popleft()
        await self._store.settle(*settlements)
        self.held -= {settlement.delivery.seq for settlement in settlements}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Bench:
    """A running dispatcher, with helpers for tests."""

    def __init__(
        self,
        folder: Path,
        store: SqliteStore,
        clock: LoopClock,
        sink: ScriptedSink,
        settings: SinkSettings,
        *,
        enricher: Enricher | None = None,
    ) -> None:
        self.file = folder / "relay.db"
        self.store = Watched(store)
        self.clock = clock
        self.sink = sink
        self._backpressure = Backpressure()
        self.metrics = Metrics(["main"], [SINK])
        self.dispatcher = Dispatcher(
            settings,
            self.sink,
            store=self.store,
            metrics=self.metrics,
            clock=clock,
            random=Certain(),
            backpressure=self._backpressure,
            activity=ActivityStream(clock),
            enricher=enricher,
        )

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Many requests wait for the store during the block."""
        with ExitStack() as waiting:
            for _ in range(THRESHOLD + 1):
                waiting.enter_context(self._backpressure.waiting())
            yield

    def earn(self, deliveries: int) -> None:
        """Acknowledge as many requests as earn credit for these deliveries."""
        self.acknowledge(deliveries * ACKNOWLEDGEMENTS_PER_DELIVERY)

    def acknowledge(self, requests: int) -> None:
        """Acknowledge requests, whose events are not for this sink."""
        for _ in range(requests):
            with self._backpressure.waiting():
                pass

    async def accept(self, *ids: str, wake: bool = True) -> None:
        """Accept new events."""

        def stored(_: object) -> None:
            if wake:
                self.dispatcher.wake()

        events = [lead(each, received_ms=self.clock.now_ms()) for each in ids]
        await asyncio.gather(*(self.store.accept(event, taken(), stored) for event in events))

    async def hand_over(self, *ids: str) -> None:
        """Accept new events, and offer them to the dispatcher."""

        async def accept(event: Event) -> None:
            offered: list[bool] = []

            def offer(delivery: Delivery) -> bool:
                offered.append(self.dispatcher.offer(delivery))
                return offered[-1]

            def stored(_: object) -> None:
                if not any(offered):
                    self.dispatcher.wake()

            await self.store.accept(event, verdicts, stored, offer)

        verdicts = taken()
        events = [lead(each, received_ms=self.clock.now_ms()) for each in ids]
        await asyncio.gather(*map(accept, events))

    async def pending(self) -> int:
        return int((await self.store.backlogs())[SINK].pending)

    async def dead(self) -> int:
        return int((await self.store.backlogs())[SINK].dead)

    async def settled(self, *, within_s: float = 7 * 86400.0) -> None:
        """Wait until nothing is pending."""
        async with asyncio.timeout(within_s):
            while await self.pending():
                await asyncio.sleep(0.1)

    def sample(self, name: str) -> float:
        """Read one metric as a scrape would."""
        text = self.metrics.exposition("")[0].decode()
        return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


class Certain(Random):
    """No jitter."""

    def random(self) -> float:
        return 0.0


def policy(**values: Any) -> RetryPolicy:
    texts = {name: Duration.parse(value) for name, value in values.items() if name != "factor"}
    return RetryPolicy(**texts, **({"factor": values["factor"]} if "factor" in values else {}))


def rate(text: str) -> Rate:
    return Rate.parse(text)


@asynccontextmanager
async def working(
    folder: Path,
    *,
    started: bool = True,
    sink: Any = None,
    enricher: Enricher | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Run a dispatcher, with a scripted or a real sink, and drain it at the end of the block."""
    sink = sink or ScriptedSink()
    kind = BatchSettings if isinstance(sink, BatchSink) else SinkSettings
    clock = LoopClock()
    async with opened(folder / "relay.db", clock) as store:
        table = kind(name=SINK, type="http", **settings)
        bench = Bench(folder, store, clock, sink, table, enricher=enricher)
        async with asyncio.TaskGroup() as tasks:
            if started:
                tasks.create_task(bench.dispatcher.run())
                await asyncio.sleep(0)
            yield bench
            await bench.dispatcher.drain(Duration.parse("1s"))
