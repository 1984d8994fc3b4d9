"""Durable acceptance: verified content goes into the store, and its sinks wake."""

from collections.abc import Callable, Sequence
from functools import partial

from relay.core.acceptance import Backpressure
from relay.core.authentication import Authenticated, read
from relay.core.clock import Clock
from relay.core.delivery import Delivery
from relay.core.event import Event, Outcome, Unreadable
from relay.core.large_bodies import BodyWorker
from relay.core.routing import Route, match
from relay.receiver.reporter import RequestReporter
from relay.store import Offer, Store


class Intake:
    """Stores verified requests: at their receipt, after a secret rotation, or once more."""

    def __init__(
        self,
        store: Store,
        routes: Sequence[Route],
        *,
        worker: BodyWorker,
        reporter: RequestReporter,
        backpressure: Backpressure,
        clock: Clock,
        wake: Callable[[str], None],
        offer: Offer,
    ) -> None:
        """`offer` takes a new delivery that the store has leased.

        `wake` is called with the name of each sink whose new delivery it has not taken.
        """
        self.routes = routes
        """Routes of the config in use."""
        self._store = store
        self._worker = worker
        self._reporter = reporter
        self._backpressure = backpressure
        self._clock = clock
        self._wake = wake
        self._offer = offer

    async def store(self, content: Event | Unreadable, routes: Sequence[Route]) -> Outcome:
        """Return once it is durable; raises StoreError."""
        with self._backpressure.waiting():
            return await self._put(content, routes)

    async def admit(self, authenticated: Authenticated) -> Outcome:
        """Store a request that was verified only some time after its receipt; raises StoreError."""
        content, skew_s, secret = authenticated
        now_ms = self._clock.now_ms()
        self._reporter.verified(content.source, skew_s=skew_s, secret=secret, now_ms=now_ms)
        return await self._put(content, self.routes)

    async def retry(self, request: Unreadable) -> Outcome:
        """Read a kept request once more, as of its receipt, and store the event in it.

        Its signature was verified then. Without a usable event nothing changes, and the outcome is
        `unreadable`. Raises StoreError.
        """
        again = partial(
            read, request.source, request.headers, request.body, now_ms=request.received_ms
        )
        content = await self._worker.run(len(request.body), again)
        if isinstance(content, Unreadable):
            return "unreadable"
        return await self._put(content, self.routes)

    async def _put(self, content: Event | Unreadable, routes: Sequence[Route]) -> Outcome:
        if isinstance(content, Unreadable):
            return await self._store.keep(
                content, lambda outcome: self._reporter.kept(content, outcome)
            )
        size = len(content.body)
        if size <= self._worker.large_bytes:
            verdicts = match(content, routes)
        else:
            verdicts = await self._worker.run(size, partial(match, content, routes))
        taken: list[str] = []

        def offer(delivery: Delivery) -> bool:
            is_taken = self._offer(delivery)
            if is_taken:
                taken.append(delivery.sink)
            return is_taken

        def stored(outcome: Outcome) -> None:
            # Whether or not the sender still waits.
            self._reporter.stored(content, verdicts, outcome)
            if outcome == "accepted":
                for verdict in verdicts:
                    if verdict.sink not in taken:
                        self._wake(verdict.sink)

        return await self._store.accept(content, verdicts, stored, offer)
