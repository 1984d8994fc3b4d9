"""Messages that go out together on one channel, and what the broker says to each of them.

brokers.md, section 4. The library publishes one by one, each with a wait for the socket; a batch
is one write here, and its confirms are where the library looks for them.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from aio_pika import exceptions
from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.sinks.amqp.connection import LOST, Connection

_SIZE = re.compile(r"message size (\d+)")


class Confirm(asyncio.Future[Any]):
    """What the broker says to one message; an exception where it is not an ack."""

    def __init__(self, tag: int, message_id: str) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.tag = tag
        """The message's number on its channel."""
        self.message_id = message_id


class Publication(msgspec.Struct, eq=False):
    """One message, and what became of it."""

    key: str
    properties: Basic.Properties
    body: bytes
    confirm: Confirm | None = None
    """None where it was not published, or not on a channel that is of any use."""
    found: SinkResponse | Exception | None = None
    """None where it is not known whether the broker has it."""

    @property
    def message_id(self) -> str:
        return str(self.properties.message_id)


class Publisher:
    """One channel, on which no two messages of one id are unconfirmed at once.

    The library finds what was returned by its id alone.
    """

    def __init__(self, connection: Connection, channel: Channel, *, exchange: str) -> None:
        self._connection = connection
        self._channel = channel
        self._exchange = exchange
        self._putting = asyncio.Lock()
        self._unconfirmed: dict[str, Confirm] = {}
        """The last of each id."""
        self._heard = 0
        """The highest tag of those that the broker has answered."""
        self._ended_alone = False
        """Whether one message was unconfirmed when the channel ended, so that the fault is its."""
        channel.closing.add_done_callback(self._closed)

    @property
    def is_open(self) -> bool:
        """False as soon as the broker has said so; its channel learns of that later."""
        known = self._channel.connection.channels.get(self._channel.number)
        return known is self._channel and not self._channel.is_closed

    async def publish_all(self, publications: Sequence[Publication]) -> None:
        """Return once each has found something, but for what the fault of another took along.

        Cancelled, it publishes nothing more, and those without a confirm have found nothing.
        """
        try:
            waiting = publications
            while waiting := await self._publish(waiting):
                twins = [self._unconfirmed.get(each.message_id) for each in waiting]
                left = [twin for twin in twins if twin is not None]
                if left:
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            confirms = [each.confirm for each in publications if each.confirm is not None]
            if confirms:
                await asyncio.wait(confirms)
        except asyncio.CancelledError:
            if self._is_silent_on(publications) and not await self._connection.is_blocked():
                # A frozen broker would take the rest later, unasked.
                self._connection.abort()
            raise
        finally:
            for each in publications:
                self._find(each)

    async def _publish(self, publications: Sequence[Publication]) -> Sequence[Publication]:
        """Send in one write those that may go now; return those that wait for one of their id."""
        await self._connection.unblocked()
        async with self._putting:
            if not self.is_open:
                return ()
            sent: dict[str, Publication] = {}
            frames: list[bytes] = []
            waiting: list[Publication] = []
            for each in publications:
                if each.message_id in sent or self._is_under_way(each.message_id):
                    waiting.append(each)
                    continue
                try:
                    frames.append(self._frames(each))
                except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
                    each.found = error
                else:
                    sent[each.message_id] = each
            if sent:
                await self._put(b"".join(frames))
                self._expect(sent)
            return waiting

    async def _put(self, frames: bytes) -> None:
        """Have them written, once what was written before is not too much for the socket."""
        drained = asyncio.get_running_loop().create_future()
        written = ChannelFrame(payload=frames, should_close=False, drain_future=drained)
        await self._channel.write_queue.put(written)

    def _expect(self, sent: Mapping[str, Publication]) -> None:
        """Number what was just put, before anything else is: the broker counts by itself."""
        channel = self._channel
        for id_, publication in sent.items():
            channel.delivery_tag += 1
            confirm = Confirm(channel.delivery_tag, id_)
            confirm.add_done_callback(self._confirmed)
            channel.confirmations[confirm.tag] = confirm
            channel.message_id_delivery_tag[id_] = confirm.tag
            publication.confirm = self._unconfirmed[id_] = confirm

    def _confirmed(self, done: asyncio.Future[Any]) -> None:
        confirm = cast("Confirm", done)
        confirm.exception()  # or asyncio tells of it where nobody waits any more
        self._heard = max(self._heard, confirm.tag)
        if self._unconfirmed.get(confirm.message_id) is confirm:
            del self._unconfirmed[confirm.message_id]
            del self._channel.message_id_delivery_tag[confirm.message_id]

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        """End what waits: the library ends what it made itself."""
        error = None if closing.cancelled() else closing.exception()
        known = self._channel.confirmations.values()
        left = [each for each in known if isinstance(each, Confirm) and not each.done()]
        self._ended_alone = len(left) == 1
        for confirm in left:
            confirm.set_exception(error or ConnectionError())

    def _is_under_way(self, message_id: str) -> bool:
        """Whether it may still be returned, as the broker does before it confirms what follows."""
        confirm = self._unconfirmed.get(message_id)
        return confirm is not None and confirm.tag > self._heard

    def _is_silent_on(self, publications: Sequence[Publication]) -> bool:
        """Whether neither the last of them that waits is answered, nor anything that follows it."""
        confirms = [each.confirm for each in publications if each.confirm is not None]
        tags = [confirm.tag for confirm in confirms if not confirm.done()]
        return max(tags, default=0) > self._heard

    def _frames(self, publication: Publication) -> bytes:
        """Raises what the library does not take."""
        body = publication.body
        frames: list[Any] = [
            Basic.Publish(exchange=self._exchange, routing_key=publication.key, mandatory=True),
            ContentHeader(properties=publication.properties, body_size=len(body)),
            *self._channel._split_body(body),  # noqa: SLF001
        ]
        return ChannelFrame.marshall(self._channel.number, frames).payload

    def _find(self, publication: Publication) -> None:
        confirm, publication.confirm = publication.confirm, None
        if confirm is None or not confirm.done():
            return
        error = confirm.exception()
        publication.found = SinkResponse() if error is None else self._failure(error, publication)

    def _failure(self, error: BaseException, publication: Publication) -> SinkError | None:
        """Say why a message was not taken; None where another's fault ended the channel."""
        match error:
            case exceptions.PublishError():
                kind = publication.properties.message_type
                reason = f"no queue takes the routing key of {kind}"
                return Misconfigured(reason, about_event=True)
            case exceptions.DeliveryError():
                reason = "the queue rejects what is new: it is full, or its leader is away"
                return Temporary(reason, about_event=True)
            case exceptions.ChannelNotFoundEntity():
                return Misconfigured(f"there is no exchange {self._exchange}")
            case exceptions.ChannelClosed() if "ACCESS_REFUSED" in str(error):
                if not self._ended_alone:
                    return None  # it names no message, so that each is tried alone
                reason = "the user may not write to the exchange, or to this topic"
                return Misconfigured(reason, about_event=True)
            case exceptions.ChannelPreconditionFailed():
                size = _SIZE.search(str(error))
                is_at_fault = (
                    self._ended_alone if size is None else int(size[1]) == len(publication.body)
                )
                return Refused("larger than the broker's max_message_size") if is_at_fault else None
        return Temporary(LOST)
