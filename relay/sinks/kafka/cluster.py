"""Delivery to a Kafka cluster; a producer that takes no more records is replaced."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from relay.core import timeouts
from relay.core.delivery import SinkResponse
from relay.core.errors import Refused, SinkError, Temporary
from relay.sinks.kafka.batch import KafkaRecord
from relay.sinks.kafka.producer import BATCH_BYTES, Producer

_MANY = 10_000
"""Maximum number of records in a batch."""


class KafkaProducer:
    """Delivers records, each with an outcome of its own."""

    def __init__(self, options: Mapping[str, Any], *, limit_s: float) -> None:
        """`options` are librdkafka's; the limit is that of metadata, and again that of records."""
        self._limit_s = limit_s
        limit_ms = int(limit_s * 1000)
        self._options = {
            **options,
            # A failure that lasts is reported well within the limit.
            "retry.backoff.ms": max(1, limit_ms // 16),
            "retry.backoff.max.ms": max(1, limit_ms // 4),
            # Records are purged at the limit; this is for those that a purge may miss.
            "message.timeout.ms": limit_ms + 1000,
        }
        self._producers: dict[int, Producer] = {}
        self._open: set[Producer] = set()

    async def check(self, topics: Collection[str]) -> None:
        """Raises SinkError for the first topic that cannot be written to."""
        until_s = asyncio.get_running_loop().time() + self._limit_s
        for error in (await self._producer(_MANY).find(topics, until_s=until_s)).values():
            raise error

    async def deliver(
        self, records: Mapping[int, KafkaRecord]
    ) -> dict[int, SinkResponse | Exception]:
        """Write records, those of one key in their order; outcomes are by the records' numbers."""
        outcomes = await self._deliver(records, _MANY)
        # A broker refuses whole batches; only a record sent alone proves to be at fault.
        doubtful = {
            number: records[number]
            for number, outcome in outcomes.items()
            if isinstance(outcome, Refused) and len(records[number].value) < BATCH_BYTES
        }
        return outcomes | await self._deliver(doubtful, 1)

    async def close(self) -> None:
        """Abandon all producers, then wait for each; if cancelled, they go on closing."""
        for producer in self._open:
            producer.abandon()
        if self._open:
            await asyncio.wait({producer.closed for producer in self._open})

    def _producer(self, batch_records: int) -> Producer:
        producer = self._producers.get(batch_records)
        if producer is None or not producer.usable:
            if producer is not None:
                producer.retire()
            options = {**self._options, "batch.num.messages": batch_records}
            producer = self._producers[batch_records] = Producer(options)
            self._open.add(producer)
            producer.closed.add_done_callback(lambda _: self._open.discard(producer))
        return producer

    async def _deliver(
        self, records: Mapping[int, KafkaRecord], batch_records: int
    ) -> dict[int, SinkResponse | Exception]:
        """Deliver again what another delivery purged when it gave up, as long as there is time."""
        outcomes: dict[int, SinkResponse | Exception] = {}
        left = dict(records)
        loop = asyncio.get_running_loop()
        until_s, finding_s = loop.time() + self._limit_s, self._limit_s
        while left and loop.time() < until_s:
            begun_s = loop.time()
            timeouts.restart()
            try:
                producer = self._producer(batch_records)
                topics = {record.topic for record in left.values()}
                faults = await producer.find(topics, until_s=begun_s + finding_s)
            except SinkError as error:
                return outcomes | dict.fromkeys(left, error)
            # The wait for metadata takes nothing from the time of the records.
            found_s = loop.time() - begun_s
            until_s, finding_s = until_s + found_s, finding_s - found_s
            timeouts.restart()
            outcomes |= {n: faults[left[n].topic] for n in left if left[n].topic in faults}
            sound = {n: left[n] for n in left if left[n].topic not in faults}
            if producer.usable:
                results = await producer.deliver(sound, until_s=until_s)
                outcomes |= {n: outcome for n, outcome in results.items() if outcome is not None}
            left = {n: left[n] for n in left if n not in outcomes}
        return outcomes | dict.fromkeys(left, Temporary("not confirmed in time"))
