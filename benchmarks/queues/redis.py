"""redis-server and redis-py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import BlockingConnectionPool

from benchmarks.queue import Broker, Loop, Message, batches, timed
from tests.brokers.redis import STREAM, RedisServer


class RedisStreams(Broker):
    """Redis, which fsyncs before it answers."""

    name = "redis"

    def start(self, folder: Path) -> None:
        self._server = RedisServer(folder)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        admin = self._server.admin()
        admin.delete(STREAM)
        admin.close()

    def table(self) -> dict[str, Any]:
        return {"url": self._server.url}

    def loops(self) -> dict[str, Loop]:
        return {"xadd": self._xadd, "pipeline": self._pipeline}

    async def _xadd(self, messages: Sequence[Message], in_flight: int) -> float:
        pool = BlockingConnectionPool.from_url(
            self._server.url, max_connections=in_flight, protocol=2
        )
        async with Redis(connection_pool=pool) as client:

            async def send(message: Message) -> None:
                await client.xadd(message.shown["stream"], _fields(message))

            return await timed(send, messages, workers=in_flight)

    async def _pipeline(self, messages: Sequence[Message], in_flight: int) -> float:
        async with Redis.from_url(self._server.url, protocol=2) as client:

            async def send(batch: Sequence[Message]) -> None:
                async with client.pipeline(transaction=False) as pipeline:
                    for message in batch:
                        pipeline.xadd(message.shown["stream"], _fields(message))
                    await pipeline.execute()

            return await timed(send, batches(messages, in_flight), workers=1)

    def held(self) -> int:
        admin = self._server.admin()
        held = int(admin.xlen(STREAM))
        admin.close()
        return held


def _fields(message: Message) -> dict[Any, Any]:
    return {**message.shown["fields"], "body": message.body}
