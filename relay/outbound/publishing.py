"""Sinks that publish each event as one message, over one connection to a broker."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from relay.core.delivery import SinkResponse
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes, SinkSettings
from relay.core.timeouts import Limit, RequestTimeout
from relay.outbound.batching import BatchOnlySink, is_cancelled, prepare
from relay.outbound.connection_health import ConnectionHealth

Message = TypeVar("Message")


class Publisher(Protocol):
    """Publishes on one connection; replaced once it is unusable."""

    @property
    def is_usable(self) -> bool:
        """False once the connection is lost, or the broker asks clients to leave it."""

    async def publish(self, messages: Sequence[Any], /) -> None:
        """Return once the broker has answered each message, or has broken off.

        If cancelled, publish nothing more, and leave unanswered messages without an outcome.
        """

    async def close(self) -> None: ...


AnyPublisher = TypeVar("AnyPublisher", bound=Publisher)


@dataclass(eq=False, slots=True)
class _Use:
    """The sends under way on a connection, and what the answers say about it."""

    sends: int = 0
    health: ConnectionHealth = field(default_factory=ConnectionHealth)


class PublishingSink(BatchOnlySink, Generic[Message, AnyPublisher]):
    """Publishes batches over one connection, opened on demand.

    A connection whose answers say that the broker does not serve on it is replaced: the next send
    opens another, and the old one closes once the sends under way on it have ended.
    A broker may break off because of one message, and leave others of the batch without an outcome:
    they are published again, then each alone, where it harms no other.
    """

    tries_together: ClassVar[int] = 1
    tries_alone: ClassVar[int] = 1

    def __init__(self, settings: SinkSettings) -> None:
        self._timeout_s = settings.timeout.seconds
        self._connecting = asyncio.Lock()
        self._publisher: AnyPublisher | None = None
        """The one for the next send."""
        self._uses: dict[AnyPublisher, _Use] = {}
        """All that are open, replaced ones too."""
        self._closing: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _message(self, event: Event) -> Message:
        """Prepare a message; an exception is the outcome of this event only."""

    @abstractmethod
    async def _connect(self, replaced: AnyPublisher | None) -> AnyPublisher:
        """Connect; raises SinkError.

        `replaced` is unusable. It may be returned nevertheless, where it can still publish and no
        better one was found.
        """

    @abstractmethod
    async def _examine(self, publisher: AnyPublisher) -> str | None:
        """Fulfil `Sink.check` on a connection that no send uses."""

    @abstractmethod
    def _outcome(self, message: Message) -> SinkResponse | Exception | None:
        """Return the outcome of a message; None while it is unknown."""

    async def timeout_error(self) -> SinkError:
        """Return the error of messages without an outcome at the timeout."""
        return Temporary(Limit(self._timeout_s).reason())

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        messages, failures = await prepare(self._message, events)
        failure = await self._publish_all(tuple(messages.values()))
        return [
            failures.get(place) or self._outcome(messages[place]) or failure
            for place in range(len(events))
        ]

    async def check(self) -> str | None:
        publisher = await self._connect(None)
        try:
            return await self._examine(publisher)
        finally:
            await publisher.close()

    async def close(self) -> None:
        self._publisher = None
        for publisher in tuple(self._uses):
            self._close(publisher)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _publish_all(self, messages: Sequence[Message]) -> SinkError:
        """Publish, and return the error for messages that have no outcome.

        Each try has the whole timeout; the first that exceeds it is the last one.
        """
        try:
            rest = messages
            for _ in range(self.tries_together):
                rest = await self._publish_in_time(rest)
            for message in rest:
                alone: Sequence[Message] = [message]
                for _ in range(self.tries_alone):
                    alone = await self._publish_in_time(alone)
        except SinkError as error:
            return error
        except TimeoutError:
            return await self.timeout_error()
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        return Temporary("the broker broke off because of another event", about_event=True)

    async def _publish_in_time(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Publish messages, if any, and return those left without an outcome."""
        if not messages:
            return messages
        async with RequestTimeout(self._timeout_s) as limit:
            rest = await self._publish_once(messages)
        if limit.expired():
            # The client swallowed the cancellation.
            raise TimeoutError
        return rest

    async def _publish_once(self, messages: Sequence[Message]) -> Sequence[Message]:
        publisher = await self._connected()
        use = self._uses[publisher]
        use.sends += 1
        try:
            await publisher.publish(messages)
            outcomes = [self._outcome(message) for message in messages]
            if use.health.is_spent(outcomes) and publisher is self._publisher:
                self._publisher = None
        finally:
            use.sends -= 1
            self._close_unused(publisher)
        return [
            message for message, outcome in zip(messages, outcomes, strict=True) if outcome is None
        ]

    async def _connected(self) -> AnyPublisher:
        async with self._connecting:
            publisher = self._publisher
            if publisher is None or not publisher.is_usable:
                publisher = await self._replace(publisher)
            if is_cancelled():
                # The client swallowed the cancellation.
                raise asyncio.CancelledError
            return publisher

    async def _replace(self, replaced: AnyPublisher | None) -> AnyPublisher:
        self._publisher = None
        try:
            publisher = self._publisher = await self._connect(replaced)
            self._uses.setdefault(publisher, _Use())
        finally:
            if replaced is not None:
                self._close_unused(replaced)
        return publisher

    def _close_unused(self, publisher: AnyPublisher) -> None:
        """Close a replaced connection, unless sends are under way on it."""
        use = self._uses.get(publisher)
        if use is not None and not use.sends and publisher is not self._publisher:
            self._close(publisher)

    def _close(self, publisher: AnyPublisher) -> None:
        """Close in a task: a broker that no longer serves may be slow to close."""
        del self._uses[publisher]
        closing = asyncio.create_task(publisher.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
