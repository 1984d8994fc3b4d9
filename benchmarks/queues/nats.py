"""nats-server and nats-py."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client

from benchmarks.queue import Broker, Loop, Message, timed
from tests.brokers.nats import PASSWORD, STREAM, NatsServer


class Nats(Broker):
    """JetStream with a stream on disk, as a single server."""

    name = "nats"

    def start(self, folder: Path) -> None:
        self._server = NatsServer(folder)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        asyncio.run(self._empty())

    async def _empty(self) -> None:
        await self._server.put_stream()
        async with self._server.jetstream() as js:
            await js.purge_stream(STREAM)

    def table(self) -> dict[str, Any]:
        return {"servers": self._server.url, "stream": STREAM}

    def loops(self) -> dict[str, Loop]:
        return {"publish": self._publish, "publish_async": self._publish_async}

    async def _connected(self) -> Client:
        address = f"nats://127.0.0.1:{self._server.port}"
        return await nats.connect(address, user="relay", password=PASSWORD)

    async def _publish(self, messages: Sequence[Message], in_flight: int) -> float:
        async with await self._connected() as connection:
            js = connection.jetstream()

            async def send(message: Message) -> None:
                shown = message.shown
                await js.publish(shown["subject"], message.body, headers=shown["headers"])

            return await timed(send, messages, workers=in_flight)

    async def _publish_async(self, messages: Sequence[Message], in_flight: int) -> float:
        async with await self._connected() as connection:
            js = connection.jetstream(publish_async_max_pending=in_flight)

            async def send(message: Message) -> None:
                shown = message.shown
                await (
                    await js.publish_async(shown["subject"], message.body, headers=shown["headers"])
                )

            return await timed(send, messages, workers=in_flight)

    def held(self) -> int:
        return asyncio.run(self._held())

    async def _held(self) -> int:
        async with self._server.jetstream() as js:
            return (await js.stream_info(STREAM)).state.messages
