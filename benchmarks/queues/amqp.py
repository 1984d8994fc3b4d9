"""RabbitMQ and aio-pika."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aio_pika

from benchmarks.queue import Broker, Loop, Message, timed
from tests.brokers.rabbitmq import QUEUE, RabbitMq


class Amqp(Broker):
    """RabbitMQ with a durable classic queue."""

    name = "amqp"

    def start(self, folder: Path) -> None:
        self._server = RabbitMq(folder)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        asyncio.run(self._server.put_queue())

    def table(self) -> dict[str, Any]:
        return {"url": self._server.url, "routing_key": QUEUE}

    def loops(self) -> dict[str, Loop]:
        return {"publish": self._publish}

    async def _publish(self, messages: Sequence[Message], in_flight: int) -> float:
        async with await aio_pika.connect(self._server.url) as connection:
            channel = await connection.channel(on_return_raises=True)

            async def send(message: Message) -> None:
                shown = message.shown
                whole = aio_pika.Message(
                    message.body,
                    headers=shown["headers"],
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=shown["message_id"],
                    type=shown["type"],
                    timestamp=1_700_000_000,
                    app_id="relay",
                )
                await channel.default_exchange.publish(whole, shown["routing_key"], mandatory=True)

            return await timed(send, messages, workers=in_flight)

    def held(self) -> int:
        return asyncio.run(self._held())

    async def _held(self) -> int:
        async with self._server.channel() as channel:
            queue = await channel.declare_queue(QUEUE, passive=True)
            return queue.declaration_result.message_count or 0
