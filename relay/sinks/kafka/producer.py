"""A Kafka producer that ends at once.

brokers.md, section 7; the library's own retries for ever, and its farewell waits for brokers.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.partitioner import DefaultPartitioner

from relay.core.errors import Misconfigured, Temporary
from relay.sinks.kafka.errors import UNNAMED, meaning

BATCH_BYTES = 65_536
"""Far below the usual max.message.bytes of 1 MiB, which is a limit on batches."""
LARGEST_BYTES = 1 << 28
"""No limit of our own: the topic's max.message.bytes decides."""

_TRIES = 5
_PAUSE_S = 0.1
_DUPLICATE = errors.DuplicateSequenceNumber.__name__
_PARTITIONER = DefaultPartitioner()

# It reports each failed attempt, a hundred times a second; the dispatcher tells of changes.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)

T = TypeVar("T")


class Record(NamedTuple):
    """One event as Kafka takes it."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class Producer(AIOKafkaProducer):  # type: ignore[misc]  # the library has no types
    """The library's idempotent producer, which retries for ever, made to end at once.

    A batch that fails leaves a gap in its partition's numbers, so that it is used no more.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(
            acks="all",
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES,
            max_request_size=LARGEST_BYTES,
            **options,
        )
        self.usable = True
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None
        self._waiting = 0
        self._confirmed = 0
        self._troubles: dict[TopicPartition | None, str] = {}
        """What went wrong last with a partition; under None with a connection."""
        self._ask, self.client.send = self.client.send, self._request

    async def find(self, topic: str, *, until_s: float) -> None:
        """Raises SinkError where it cannot be written to; a cluster may make it first.

        `until_s` is in the time of the loop.
        """
        if self.client.cluster.partitions_for_topic(topic) is None:
            await self._limit(self._seek(topic), None, until_s)

    def spread(self, topic: str, keys: Sequence[bytes | None]) -> list[int]:
        """Choose a partition for each, as Java does: by its key, and one for all without a key."""
        cluster = self.client.cluster
        known = sorted(cluster.partitions_for_topic(topic))
        led = list(cluster.available_partitions_for_topic(topic))
        chosen = {key: _PARTITIONER(key, known, led) for key in set(keys)}
        return [chosen[key] for key in keys]

    async def deliver(
        self, place: TopicPartition, records: Sequence[Record], *, until_s: float
    ) -> Sequence[int]:
        """Write as many as one batch takes; return their offsets, below 0 if they are not known.

        Raises SinkError where none was taken; what was not confirmed is not sent later.
        """
        if asyncio.get_running_loop().time() >= until_s:
            raise meaning(self._trouble_of(place))
        return await self._limit(self._put(place, records), place, until_s)

    def abandon(self) -> None:
        """Fail all that waits; `stop` waits until nothing is left of it."""
        self.usable = False
        if self._over.done():
            return
        self._over.set_result(None)
        self._ending = asyncio.create_task(self._end())

    async def stop(self) -> None:
        self.abandon()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    @property
    def ended(self) -> bool:
        return self._ending is not None and self._ending.done()

    async def _limit(
        self, doing: Coroutine[Any, Any, T], place: TopicPartition | None, until_s: float
    ) -> T:
        confirmed = self._confirmed
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until_s):
                return await doing
        except (TimeoutError, asyncio.CancelledError) as error:
            self.usable = False
            if self._confirmed == confirmed:
                self.abandon()
            if isinstance(error, asyncio.CancelledError):
                raise
            end = meaning(self._trouble_of(place))
        except errors.KafkaError as error:
            self.usable = False
            unnamed = type(error) is errors.UnknownError
            end = meaning(self._trouble_of(place, "") if unnamed else error)
        finally:
            self._waiting -= 1
            if not self.usable and not self._waiting:
                self.abandon()
        raise end

    def _trouble_of(
        self, place: TopicPartition | None, otherwise: str = "RequestTimedOutError"
    ) -> str:
        return self._troubles.get(place) or self._troubles.get(None) or otherwise

    async def _seek(self, topic: str) -> None:
        cluster = self.client.cluster
        for _ in range(_TRIES):
            known = await self.client.add_topic(topic) and await self.client.force_metadata_update()
            if topic in cluster.unauthorized_topics:
                reason = f"the user may not write to the topic {topic}"
                raise Misconfigured(reason, about_event=True)
            if not known or not self.usable:
                self.usable = False
                raise Temporary("no broker can be reached")
            if cluster.partitions_for_topic(topic) is not None:
                return
            await asyncio.sleep(_PAUSE_S)
        raise Misconfigured(f"the topic {topic} does not exist", about_event=True)

    async def _put(self, place: TopicPartition, records: Sequence[Record]) -> Sequence[int]:
        batch = self.create_batch()
        for key, value, headers in records:
            # The first one always has room, however large it is.
            if batch.append(timestamp=None, key=key, value=value, headers=headers) is None:
                break
        batch.close()
        try:
            answer = await self.send_batch(batch, place.topic, partition=place.partition)
            answer.add_done_callback(_hear)
            await asyncio.wait({answer, self._over}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # Empty it is dropped where it waits, also for another try.
            batch._relative_offset = 0  # noqa: SLF001
            raise
        if not answer.done():
            raise errors.ProducerClosed
        first: int = answer.result().offset
        if first < 0 and self._troubles.get(place) != _DUPLICATE:
            raise Temporary("the broker named no offset, so that it confirmed nothing")
        self._confirmed += 1
        for trouble in (place, None):
            self._troubles.pop(trouble, None)
        count: int = batch.record_count()
        # A broker that has them already need not remember where.
        return range(first, first + count) if first >= 0 else [first] * count

    async def _request(self, *request: Any, **options: Any) -> Any:
        """Ask a broker as the library does, but no longer than this producer is in use."""
        asking = asyncio.ensure_future(self._ask(*request, **options))
        try:
            await asyncio.wait({asking, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
        if not asking.done():
            await asyncio.wait({asking})
        error = errors.ProducerClosed() if asking.cancelled() else asking.exception()
        if error is not None:
            self._troubles[None] = type(error).__name__
            raise error
        self._note(asking.result())
        return asking.result()

    def _note(self, response: Any) -> None:
        for topic, partitions in getattr(response, "topics", ()):
            for partition, code, *_ in partitions:
                if code:
                    name = UNNAMED.get(code) or errors.for_code(code).__name__
                    self._troubles[TopicPartition(topic, partition)] = name

    async def _end(self) -> None:
        """Let go without a farewell: the library's own `stop` waits for brokers that are away."""
        batches = self._message_accumulator
        batches._closed = True  # noqa: SLF001
        client = self.client
        for connection in client._conns.values():  # noqa: SLF001
            if connection._writer is not None:  # noqa: SLF001
                connection._writer.transport.abort()  # noqa: SLF001
        await client.close()
        update = client._md_update_fut  # noqa: SLF001
        if update is not None and not update.done():
            update.set_result(False)
        await self._sender.close()
        for batch in [each for queue in batches._batches.values() for each in queue]:  # noqa: SLF001
            batch.drain_ready()
        batches._batches.clear()  # noqa: SLF001
        await super().stop()


def _hear(answer: asyncio.Future[Any]) -> None:
    """Whoever asked may be gone, and an error that nobody looks at would be logged."""
    if not answer.cancelled():
        answer.exception()
