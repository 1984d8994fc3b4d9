"""A librdkafka producer, which takes no more records after giving one up.

brokers.md, section 7. Giving up purges all its records, so that none can arrive later.

librdkafka's public producer reports on each record, and can be purged. aiokafka's can only be
stopped, which waits for brokers that are away; confluent-kafka's `AIOProducer` takes no headers.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Message

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.sinks.kafka.batch import KafkaRecord, Outcome, ProduceBatch
from relay.sinks.kafka.errors import classify

BATCH_BYTES = 65_536
"""Maximum size of a batch, far below the usual max.message.bytes; a larger record goes alone."""

_SILENT = logging.getLogger("librdkafka")
_SILENT.setLevel(logging.CRITICAL + 1)

_OPTIONS = {
    "acks": "all",
    "batch.size": BATCH_BYTES,
    "client.id": "relay",
    "enable.idempotence": True,
    "linger.ms": 50,  # `flush` does not wait for it
    "log_level": 0,
    "logger": _SILENT,
    "message.max.bytes": 1 << 28,  # the topic's max.message.bytes decides
    "partitioner": "murmur2_random",  # that of Java's client
    "reconnect.backoff.max.ms": 1000,
    "retries": 3,
    "sticky.partitioning.linger.ms": 1000,  # records without a key share a partition
}

_PURGE_S = 0.2
"""Time for the reports on purged records; a thread of the client may be busy with DNS."""
_IDLE_S = 60.0
"""Interval at which an idle client's errors are read; they would pile up otherwise."""
_METADATA_TIMEOUT_MIN_S = 0.25
"""Of the first request, before brokers count as down: enough for a second address."""
_METADATA_TIMEOUT_MAX_S = 1.0
"""Of each later one; closing the client waits for it."""
_CREATION_PAUSES_S = (0.1, 0.1, 0.2, 0.0)
"""Pauses after a topic was missing: the first request may make the cluster create it."""

_FATAL = (KafkaException, SystemError)
"""What confluent-kafka 2.16 raises for a fatal error of the producer, such as a lost sequence.

In a delivery report, the first call into C makes a SystemError of it. A KafkaError comes bare, too.
"""


class Producer:
    """Delivers records until it is abandoned, or retired and idle."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` are librdkafka's; raises SinkError where it rejects them."""
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.trouble: SinkError | None = None
        """Last failure of a connection since a broker has answered."""
        self._bug: Exception | None = None
        """Raised in the client's thread, outside of any record's report."""
        self._unreached = False
        self._is_spoilt = False
        self._retired = False
        self._abandoned = False
        self._calls = 0
        """Number of calls of `find` and `deliver` in progress."""
        self._topics: set[str] = set()
        self._work = threading.Event()
        try:
            self._client = confluent_kafka.Producer({**_OPTIONS, **options, "error_cb": self._note})
        except KafkaException as error:
            raise classify(error.args[0]) from None
        threading.Thread(target=self._serve, name="kafka", daemon=True).start()

    @property
    def usable(self) -> bool:
        """Whether it takes more records; if not, those that it has are still delivered."""
        return not (self._abandoned or self._retired or self._is_spoilt)

    async def find(self, topics: Collection[str], *, until_s: float) -> dict[str, SinkError]:
        """Return the topics that cannot be written to; raises SinkError without a broker.

        `until_s` is in the time of the loop.
        """
        unknown = set(topics) - self._topics
        if not unknown:
            return {}
        with self._call():
            try:
                errors = await asyncio.to_thread(self._find, unknown, until_s - self._loop.time())
            except (SinkError, asyncio.CancelledError):
                self.abandon()
                raise
        self._topics |= unknown - errors.keys()
        return errors

    async def deliver(
        self, records: Mapping[int, KafkaRecord], *, until_s: float
    ) -> Mapping[int, Outcome]:
        """Write to topics that were found; outcomes are by the records' numbers.

        None stands for a record that another delivery has purged before it was sent.
        """
        if not records:
            return {}
        with self._call():
            return await self._deliver(records, until_s)

    async def _deliver(
        self, records: Mapping[int, KafkaRecord], until_s: float
    ) -> Mapping[int, Outcome]:
        batch = ProduceBatch(len(records))
        for number, record in records.items():
            self._produce(record, number, batch)
        self._work.set()
        try:
            await asyncio.wait({batch.complete}, timeout=until_s - self._loop.time())
            if batch.complete.done():
                # The client remembers for minutes that it may not write to a topic.
                self._is_spoilt |= any(
                    isinstance(o, Misconfigured) for o in batch.outcomes.values()
                )
                return batch.outcomes
            self.abandon()
            await asyncio.wait({batch.complete}, timeout=_PURGE_S)
        except asyncio.CancelledError:
            self.abandon()
            raise
        unsent = (
            self._bug
            or self.trouble
            or Temporary("the leader of the partition cannot be reached", about_event=True)
        )
        return {number: batch.outcomes.get(number) or unsent for number in records}

    @contextmanager
    def _call(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close the client as soon as no call is in progress, so that no record is purged."""
        self._retired = True
        if self._calls == 0:
            self.abandon()

    def abandon(self) -> None:
        """Purge every record, and close the client without waiting for a broker."""
        if not self._abandoned:
            self._client.purge(blocking=False)
            self._abandoned = True
            self._work.set()

    def _produce(self, record: KafkaRecord, number: int, batch: ProduceBatch) -> None:
        topic, key, value, headers = record
        report = partial(self._report, batch, number)
        try:
            self._client.produce(topic, value, key, headers=headers, on_delivery=report)
        except KafkaException as error:
            batch.add(number, classify(error.args[0], topic=topic))
        except BufferError:
            batch.add(number, Temporary("the client's queue is full"))

    def _report(
        self, batch: ProduceBatch, number: int, error: KafkaError | None, message: Message
    ) -> None:
        """Called in the client's thread."""
        try:
            outcome = self._outcome(error, message)
        except _FATAL:
            self._is_spoilt = True
            outcome = self._outcome(error, message)
        except Exception as bug:  # noqa: BLE001  a bug is the outcome of this record
            outcome = bug
        batch.add(number, outcome)

    def _outcome(self, error: KafkaError | None, message: Message) -> Outcome:
        topic = str(message.topic())
        if error is None:
            self._is_reached()
            # A broker that already has the batch need not know its place.
            offset = "unknown" if message.offset() is None else message.offset()
            return SinkResponse(
                excerpt=f"{topic}, partition {message.partition()}, offset {offset}"
            )
        purged_unsent = error.name() == "_PURGE_QUEUE"
        return None if purged_unsent else classify(error, topic=topic)

    def _serve(self) -> None:
        """Run in a thread of its own, which closes the client in the end."""
        try:
            while not self._abandoned:
                self._work.wait(_IDLE_S)
                self._work.clear()
                self._flush()
        finally:
            self._is_spoilt = True
            try:
                self._client.close()
            except Exception as error:  # noqa: BLE001  of a callback; deliveries report it
                self._bug = self._bug or error
            finally:
                with suppress(RuntimeError):  # the loop is closed, so nothing waits for it
                    self._loop.call_soon_threadsafe(self.closed.set_result, None)

    def _flush(self) -> None:
        """Send without lingering, and call the delivery reports."""
        try:
            while len(self._client):
                self._client.flush(1)
        except Exception as error:  # noqa: BLE001  deliveries report it
            if not isinstance(error, _FATAL):
                self._bug = error
            self._spoil()
        except:  # noqa: E722  a fatal error, too: KafkaError does not derive from BaseException
            self._spoil()

    def _spoil(self) -> None:
        self._is_spoilt = True
        self._work.set()

    def _find(self, topics: Collection[str], within_s: float) -> dict[str, SinkError]:
        end_s = time.monotonic() + within_s
        for pause_s in _CREATION_PAUSES_S:
            errors = {topic: self._topic_error(topic, end_s) for topic in topics}
            names = {error.name() for error in errors.values() if error is not None}
            if names.isdisjoint({"UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE"}):
                break
            time.sleep(pause_s)
        return {
            topic: classify(error, topic=topic)
            for topic, error in errors.items()
            if error is not None
        }

    def _topic_error(self, topic: str, end_s: float) -> KafkaError | None:
        """Return the broker's error about a topic; raises SinkError without a broker."""
        timeout_s = _METADATA_TIMEOUT_MIN_S
        while True:
            left_s = max(0.0, end_s - time.monotonic())
            try:
                metadata = self._client.list_topics(topic, timeout=min(timeout_s, left_s))
            except (KafkaException, RuntimeError):  # not in time, or abandoned and closed
                self._work.set()  # to have errors of connections noted
                if self._unreached or self._abandoned or timeout_s > left_s:
                    raise (self.trouble or Temporary("the brokers do not answer in time")) from None
                timeout_s = min(2 * timeout_s, _METADATA_TIMEOUT_MAX_S)
            else:
                self._is_reached()
                error: KafkaError | None = metadata.topics[topic].error
                return error

    def _is_reached(self) -> None:
        self._unreached = False
        self.trouble = None

    def _note(self, error: KafkaError) -> None:
        """Called with errors of connections, which the client restores without help."""
        if error.name() == "_ALL_BROKERS_DOWN":
            self._unreached = True
        elif not isinstance(self.trouble, Misconfigured):
            # One that someone has to mend says more than another broker that is away.
            self.trouble = classify(error)
