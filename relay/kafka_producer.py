"""A Kafka producer that ends at once, and what its failures mean to an operator.

brokers.md, section 7; the library's own retries for ever, and its farewell waits for brokers.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaProducer, errors

from relay import connecting
from relay.errors import Misconfigured, Refused, SinkError, Temporary

MEANINGS: Mapping[str, tuple[type[SinkError], str]] = {
    "UnknownTopicOrPartitionError": (Misconfigured, "the topic does not exist"),
    "InvalidTopicError": (Misconfigured, "the topic's name is not allowed"),
    "TopicAuthorizationFailedError": (Misconfigured, "the user may not write to the topic"),
    "ClusterAuthorizationFailedError": (Misconfigured, "the user may not write idempotently"),
    "SaslAuthenticationFailed": (Misconfigured, "wrong username or password"),
    "UnsupportedSaslMechanismError": (Misconfigured, "the broker lacks this sasl_mechanism"),
    "IllegalSaslStateError": (Misconfigured, "the broker does not expect SASL here"),
    "UnsupportedVersionError": (Misconfigured, "the broker is too old"),
    "IncompatibleBrokerVersion": (Misconfigured, "the broker is too old"),
    "PolicyViolationError": (Misconfigured, "the broker's policy forbids this"),
    "MessageSizeTooLargeError": (Refused, "larger than the topic takes"),
    "RecordListTooLargeError": (Refused, "larger than the topic's segments"),
    "InvalidRecordError": (Refused, "the broker finds the record invalid"),
    "KafkaStorageError": (Temporary, "the broker cannot write to its disk"),
    "NotEnoughReplicasError": (Temporary, "fewer replicas are in sync than the topic demands"),
    "NotEnoughReplicasAfterAppendError": (Temporary, "too few replicas confirmed in time"),
    "NotLeaderForPartitionError": (Temporary, "the partition has no leader"),
    "LeaderNotAvailableError": (Temporary, "the partition has no leader"),
    "KafkaConnectionError": (Temporary, "the connection was lost"),
    "NodeNotReadyError": (Temporary, "a broker cannot be reached"),
    "RequestTimedOutError": (Temporary, "not confirmed in time"),
    "ProducerClosed": (Temporary, "the connection was lost"),
}
"""By the client's names of Kafka's errors; what is not here is taken for temporary."""

UNNAMED: Mapping[int, str] = {87: "InvalidRecordError"}
"""Kafka's codes that the client does not know."""

BATCH_BYTES = 16_384
LARGEST_BYTES = 1 << 28
"""No limit of our own: the topic's max.message.bytes decides."""

_TRIES = 5
_PAUSE_S = 0.1

# It reports each failed attempt, a hundred times a second; the dispatcher tells of changes.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)


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
        self._records: set[asyncio.Future[Any]] = set()
        self._waiting = 0
        self._confirmed = 0
        self._trouble: str | None = None
        self._ask, self.client.send = self.client.send, self._request

    async def deliver(self, topic: str, *, within_s: float, alone: bool, **record: Any) -> Any:
        """Return the record's place; raises SinkError."""
        confirmed = self._confirmed
        self._waiting += 1
        try:
            async with asyncio.timeout(within_s):
                await self.find(topic)
                found = await self._put(topic, alone=alone, **record)
        except (TimeoutError, asyncio.CancelledError) as error:
            if self._confirmed == confirmed:
                self.abandon()  # or it would send the record later, unasked
            if isinstance(error, asyncio.CancelledError):
                raise
            end = failure(self._trouble or "RequestTimedOutError")
        except errors.KafkaError as error:
            self.usable = False
            unnamed = type(error) is errors.UnknownError
            end = failure(self._trouble or "" if unnamed else error)
        else:
            self._confirmed += 1
            self._trouble = None
            return found
        finally:
            self._waiting -= 1
            if not self.usable and not self._waiting:
                self.abandon()
        raise end

    async def find(self, topic: str) -> None:
        """Raises Misconfigured where it cannot be written to; a cluster may make it first."""
        cluster = self.client.cluster
        for _ in range(_TRIES):
            if cluster.partitions_for_topic(topic) is not None:
                return
            known = await self.client.add_topic(topic) and await self.client.force_metadata_update()
            if topic in cluster.unauthorized_topics:
                raise Misconfigured(f"the user may not write to the topic {topic}")
            if not known or not self.usable:
                self.usable = False
                raise Temporary("no broker can be reached")
            await asyncio.sleep(_PAUSE_S)
        if cluster.partitions_for_topic(topic) is None:
            raise Misconfigured(f"the topic {topic} does not exist")

    def abandon(self) -> None:
        """Fail all that waits; `stop` waits until nothing is left of it."""
        self.usable = False
        if self._over.done():
            return
        self._over.set_result(None)
        for record in self._records:
            if not record.done():
                record.set_exception(errors.ProducerClosed())
        self._ending = asyncio.create_task(self._end())

    async def stop(self) -> None:
        self.abandon()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    @property
    def ended(self) -> bool:
        return self._ending is not None and self._ending.done()

    async def _put(self, topic: str, *, alone: bool, **record: Any) -> Any:
        if alone:
            partition = self._partition(topic, None, None, None, record["key"], record["value"])
            batch = self.create_batch()
            batch.append(timestamp=None, **record)
            batch.close()
            future = await self.send_batch(batch, topic, partition=partition)
        else:
            future = await self.send(topic, **record)
        self._records.add(future)
        try:
            return await future
        finally:
            self._records.discard(future)

    async def _request(self, *request: Any, **options: Any) -> Any:
        """Ask a broker as the library does, but no longer than this producer is in use."""
        asking = asyncio.ensure_future(self._ask(*request, **options))
        try:
            await asyncio.wait({asking, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
        await asyncio.wait({asking})
        error = errors.ProducerClosed() if asking.cancelled() else asking.exception()
        if error is not None:
            self._trouble = type(error).__name__
            raise error
        self._note(asking.result())
        return asking.result()

    def _note(self, response: Any) -> None:
        for _, partitions in getattr(response, "topics", ()):
            for _, code, *_ in partitions:
                if code:
                    self._trouble = UNNAMED.get(code) or errors.for_code(code).__name__

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


def failure(error: Exception | str) -> SinkError:
    """Say what an error means, or the name of one; its text may hold anything, and is not used."""
    if isinstance(error, Exception):
        unreached = connecting.failure(error, peer="broker")
        if unreached is not None:
            return unreached
    name = error if isinstance(error, str) else type(error).__name__
    kind, text = MEANINGS.get(name, (Temporary, f"Kafka failed with {name}"))
    return kind(text)
