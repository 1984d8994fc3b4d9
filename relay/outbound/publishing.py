"""Sinks that publish each event as one message, over one connection to a broker."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from relay.core.delivery import SinkResponse
from relay.core.errors import SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import Outcomes, SinkSettings
from relay.outbound.batching import BatchOnlySink, is_cancelled, prepare

Message = TypeVar("Message")


class Publisher(Protocol):
    """Publishes on one connection; replaced once it is unusable."""

    @property
    def is_usable(self) -> bool: ...

    async def publish(self, messages: Sequence[Any], /) -> None:
        """Return once the broker has answered each message, or has broken off.

        If cancelled, publish nothing more, and leave unanswered messages without an outcome.
        """

    async def close(self) -> None: ...


AnyPublisher = TypeVar("AnyPublisher", bound=Publisher)


class PublishingSink(BatchOnlySink, Generic[Message, AnyPublisher]):
    """Publishes batches over one connection, opened on demand.

    A broker may break off because of one message, and leave others of the batch without an outcome:
    they are published again, then each alone, where it harms no other.
    """

    tries_together: ClassVar[int] = 1
    tries_alone: ClassVar[int] = 1

    def __init__(self, settings: SinkSettings) -> None:
        self._timeout_s = settings.timeout.seconds
        self._connecting = asyncio.Lock()
        self._publisher: AnyPublisher | None = None

    @abstractmethod
    def _message(self, event: Event) -> Message:
        """Prepare a message; an exception is the outcome of this event only."""

    @abstractmethod
    async def _connect(self) -> AnyPublisher:
        """Connect; `_publisher` is the one to replace, if any. Raises SinkError."""

    @abstractmethod
    def _outcome(self, message: Message) -> SinkResponse | Exception | None:
        """Return the outcome of a message; None while it is unknown."""

    async def timeout_error(self) -> SinkError:
        """Return the error of messages without an outcome at the timeout."""
        return Temporary(f"no answer within {self._timeout_s:g} s")

    async def send_batch(self, events: Sequence[Event]) -> Outcomes:
        messages, failures = prepare(self._message, events)
        failure = await self._publish_all(tuple(messages.values()))
        return [
            failures.get(place) or self._outcome(messages[place]) or failure
            for place in range(len(events))
        ]

    async def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()

    async def _publish_all(self, messages: Sequence[Message]) -> SinkError:
        """Publish within the timeout, and return the error of messages without an outcome."""
        try:
            async with asyncio.timeout(self._timeout_s):
                rest = messages
                for _ in range(self.tries_together):
                    rest = await self._publish_once(rest)
                for message in rest:
                    alone: Sequence[Message] = [message]
                    for _ in range(self.tries_alone):
                        alone = await self._publish_once(alone)
        except SinkError as error:
            return error
        except TimeoutError:
            return await self.timeout_error()
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return Temporary("the client library broke it off")
        return Temporary("the broker broke off because of another event", about_event=True)

    async def _publish_once(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Publish messages, if any, and return those left without an outcome."""
        if messages:
            publisher = await self._connected()
            await publisher.publish(messages)
        return [message for message in messages if self._outcome(message) is None]

    async def _connected(self) -> AnyPublisher:
        async with self._connecting:
            if self._publisher is None or not self._publisher.is_usable:
                self._publisher = await self._connect()
            if is_cancelled():
                # The client swallowed the cancellation.
                raise asyncio.CancelledError
            return self._publisher
