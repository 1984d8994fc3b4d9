"""Publishing on one channel, and the broker's answer to each message.

brokers.md, section 4. Each message is one publish call of aiormq: aio-pika, a layer above it, hides
the stream, which has to be cut when a broker freezes.
"""

import asyncio
import re
from collections.abc import Sequence
from weakref import WeakValueDictionary

import aiormq
import msgspec
from aiormq import spec

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.outbound.batching import is_cancelled
from relay.sinks.amqp.connection import ERRORS, LOST, AmqpConnection

_SMALL_BYTES = 2048
"""Of headers' values: with their names and the other properties, the smallest frame holds them."""

_SIZE = re.compile(r"message size (\d+)")


class Publication(msgspec.Struct, eq=False):
    """One message and its outcome."""

    key: str
    properties: spec.Basic.Properties
    body: bytes
    outcome: SinkResponse | Exception | None = None
    """None while it is unknown whether the broker has the message."""


class AmqpPublisher:
    """Publishes on one channel, where no two messages of one id are unconfirmed at once.

    The library matches a returned message to its confirm by the id alone.
    """

    def __init__(
        self, connection: AmqpConnection, channel: aiormq.Channel, *, exchange: str
    ) -> None:
        self.connection = connection
        self.was_blocked = False
        """Whether an alarm of the broker has blocked a send until its timeout."""
        self._owns_connection = True
        self._channel = channel
        self._exchange = exchange
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._published = 0
        """The number of messages, which is the number of the last one."""
        self._answered = 0
        """The highest number of those that the broker has answered."""
        self._unconfirmed = 0
        self._unconfirmed_at_end = 0
        """Of these, the number when the broker closed the channel."""

    @property
    def is_usable(self) -> bool:
        return self.is_open and not self.was_blocked

    @property
    def is_open(self) -> bool:
        """False as soon as the broker has closed the channel, which learns of that later."""
        known = self._channel.connection.channels.get(self._channel.number)
        is_open = known is self._channel and not self._channel.is_closed
        return is_open and self.connection.is_usable

    def hand_over(self) -> AmqpConnection | None:
        """Give up the connection, which outlives its channel; None where it is lost."""
        if not self.connection.is_usable:
            return None
        self._owns_connection = False
        return self.connection

    async def close(self) -> None:
        if self._owns_connection:
            await self.connection.close()

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Return once each has an outcome, except where the fault of another closed the channel.

        Cancelled, it publishes nothing more, and leaves those without a confirm as they are.
        """
        await asyncio.gather(*map(self._publish, publications))

    async def _publish(self, publication: Publication) -> None:
        message_id = str(publication.properties.message_id)
        turn = self._turns.get(message_id) or self._turns.setdefault(message_id, asyncio.Lock())
        async with turn:
            await self.connection.unblocked()
            if self.is_open:
                self._unconfirmed += 1
                try:
                    publication.outcome = await self._confirm(publication)
                except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
                    publication.outcome = error
                finally:
                    self._unconfirmed -= 1

    async def _confirm(self, publication: Publication) -> SinkResponse | SinkError | None:
        """Publish a message and wait for its confirm; raises what the library does not encode."""
        if not self._fits(publication.properties):
            return Refused(
                "the properties are larger than a frame of the broker's (frame_max)", unsent=True
            )
        number = self._published = self._published + 1
        try:
            await self._channel.basic_publish(
                publication.body,
                exchange=self._exchange,
                routing_key=publication.key,
                properties=publication.properties,
                mandatory=True,
                wait=False,
            )
        except asyncio.CancelledError:
            if not is_cancelled():
                return Temporary(LOST)  # so the library ends a wait when its connection ends
            if number > self._answered and not await self.connection.is_blocked():
                # A frozen broker would accept the rest later, after it was given up.
                self.connection.abort()
            raise
        except aiormq.ChannelClosed as error:
            self._unconfirmed_at_end = self._unconfirmed_at_end or self._unconfirmed
            return self._closing_failure(error, publication)
        except aiormq.ChannelInvalidStateError:
            return None  # it was closed before this one was written
        except aiormq.DeliveryError as error:
            self._answered = max(self._answered, number)
            return _failure(error, publication)
        except ERRORS:
            return Temporary(LOST)
        self._answered = max(self._answered, number)
        return SinkResponse()

    def _fits(self, properties: spec.Basic.Properties) -> bool:
        """Whether the broker takes such a frame; a larger one would end the connection."""
        values = (properties.headers or {}).values()
        if 4 * sum(len(str(value)) for value in values) < _SMALL_BYTES:
            return True  # as usual, and encoding them just to count is costly
        return len(properties.marshal()) <= self.connection.properties_max

    def _closing_failure(
        self, error: aiormq.ChannelClosed, publication: Publication
    ) -> SinkError | None:
        """Explain why the channel was closed; None where the fault may be that of another."""
        is_alone = self._unconfirmed_at_end == 1
        match error:
            case aiormq.ChannelNotFoundEntity():
                return Misconfigured(f"there is no exchange {self._exchange}")
            case aiormq.ChannelAccessRefused():  # it names no message
                reason = "the user may not write to the exchange, or to this topic"
                return Misconfigured(reason, about_event=True) if is_alone else None
            case aiormq.ChannelPreconditionFailed():
                size = _SIZE.search(str(error))
                is_at_fault = is_alone if size is None else int(size[1]) == len(publication.body)
                return Refused("larger than the broker's max_message_size") if is_at_fault else None
        return Temporary(LOST)


def _failure(error: aiormq.DeliveryError, publication: Publication) -> SinkError:
    if isinstance(error, aiormq.PublishError):
        kind = publication.properties.message_type
        return Misconfigured(f"no queue takes the routing key of {kind}", about_event=True)
    reason = "the queue rejects what is new: it is full, or its leader is away"
    return Temporary(reason, about_event=True)
