"""The way to a Kafka cluster: one producer, made anew after a failure, and order in partitions."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from aiokafka import TopicPartition
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaError

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, SinkError, Temporary
from relay.core.sink import Outcomes
from relay.sinks.kafka.errors import meaning
from relay.sinks.kafka.producer import Producer, Record


class Connection:
    """Holds the producer in use, and those before it that still have something to confirm."""

    def __init__(
        self, brokers: Sequence[tuple[str, int]], options: Mapping[str, Any], *, limit_s: float
    ) -> None:
        """`options` are the library's; the limit is for all brokers together."""
        self._brokers = brokers
        self._options = {
            **options,
            "request_timeout_ms": int(limit_s * 1000),
            "client_id": "relay",
        }
        self._limit_s = limit_s / len(brokers)
        self._connecting = asyncio.Lock()
        self._producer: Producer | None = None
        self._former: set[Producer] = set()
        self._turns: WeakValueDictionary[TopicPartition, asyncio.Lock] = WeakValueDictionary()

    async def producer(self, *, until_s: float) -> Producer:
        """Raises SinkError; `until_s` is in the time of the loop."""
        if self._producer is not None and self._producer.usable:
            return self._producer
        try:
            async with asyncio.timeout_at(until_s), self._connecting:
                return await self._renew()
        except TimeoutError:
            raise Temporary("the brokers do not answer in time") from None

    async def deliver(
        self, place: TopicPartition, records: Sequence[Record], *, until_s: float
    ) -> Outcomes:
        """Write to one partition, in the order of the calls; each record has its own outcome.

        A batch behind one that fails would be refused for the gap in the numbers.
        """
        turn = self._turns.setdefault(place, asyncio.Lock())
        try:
            async with asyncio.timeout_at(until_s):
                await turn.acquire()
        except TimeoutError:
            return [Temporary("others in its partition are not confirmed yet")] * len(records)
        try:
            return await self._deliver(place, records, until_s)
        finally:
            turn.release()

    async def close(self) -> None:
        self._retire()
        for producer in tuple(self._former):
            await producer.stop()
            self._former.discard(producer)

    async def _deliver(
        self, place: TopicPartition, records: Sequence[Record], until_s: float
    ) -> list[SinkResponse | Exception]:
        found: list[SinkResponse | Exception] = []
        while rest := records[len(found) :]:
            try:
                found += await self._write(place, rest, until_s)
            except Refused as refusal:
                found += await self._halve(place, rest, until_s, refusal)
            except Exception as error:  # noqa: BLE001  a bug here is not one of other partitions
                found += [error] * len(rest)
        return found

    async def _halve(
        self, place: TopicPartition, records: Sequence[Record], until_s: float, refusal: Refused
    ) -> list[SinkResponse | Exception]:
        """By halves one is soon found that is too large; the others are taken."""
        if len(records) == 1:
            return [refusal]
        middle = len(records) // 2
        return [
            *await self._deliver(place, records[:middle], until_s),
            *await self._deliver(place, records[middle:], until_s),
        ]

    async def _write(
        self, place: TopicPartition, records: Sequence[Record], until_s: float
    ) -> list[SinkResponse]:
        producer = await self.producer(until_s=until_s)
        await producer.find(place.topic, until_s=until_s)
        offsets = await producer.deliver(place, records, until_s=until_s)
        where = f"{place.topic}, partition {place.partition}, offset "
        return [SinkResponse(excerpt=where + (str(at) if at >= 0 else "unknown")) for at in offsets]

    async def _renew(self) -> Producer:
        if self._producer is None or not self._producer.usable:
            self._retire()
            self._producer = await self._connect()
        return self._producer

    def _retire(self) -> None:
        self._former = {each for each in self._former if not each.ended}
        if self._producer is not None:
            self._former.add(self._producer)
            self._producer = None

    async def _connect(self) -> Producer:
        failures: list[SinkError] = []
        for host, port in self._brokers:
            try:
                async with asyncio.timeout(self._limit_s):
                    return await self._start(host, port)
            except (OSError, KafkaError) as error:
                failures.append(meaning(error))
        # One that someone has to mend says more than others that are away.
        raise next((each for each in failures if isinstance(each, Misconfigured)), failures[0])

    async def _start(self, host: str, port: int) -> Producer:
        """Connect by hand first, because the library keeps the cause of a failure to itself."""
        connection = await create_conn(host, port, **self._options)
        await connection.close()
        producer = Producer(bootstrap_servers=f"{host}:{port}", **self._options)
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer
