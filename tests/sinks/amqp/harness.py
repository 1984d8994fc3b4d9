"""The `amqp` sink's destination: one real rabbitmq-server for all tests, behind a door."""

import asyncio
from itertools import count
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Refused, Temporary
from tests.brokers.rabbitmq import PASSWORD, RabbitMq
from tests.sinks.conformance import Message, watched_in
from tests.sinks.servers import BehindDoor

_NUMBERS = count()


class AmqpHarness(BehindDoor[RabbitMq]):
    program = RabbitMq
    sink_type = "amqp"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        "nobody listens": Temporary,
        "the queue is full": Temporary,
        "larger than the broker takes": Refused,
        "no queue takes the routing key": Misconfigured,
        "the password is wrong": Misconfigured,
        "the user may not write": Misconfigured,
    }
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "RabbitMQ does not ask for a pace",
    }

    def __init__(self) -> None:
        self.queue = f"relay-{next(_NUMBERS)}"
        self._found: list[Message] = []

    async def prepare(self) -> None:
        await self.server.put_queue(self.queue)

    async def __aexit__(self, *_: object) -> None:
        await self.recover()
        await self.door.shut()
        await self.server.drop_queue(self.queue)

    def table(self) -> dict[str, Any]:
        url = self.server.url.replace(f":{self.server.port}", f":{self.door.port}")
        return {"url": url, "routing_key": self.queue}

    def messages(self) -> list[Message]:
        self._found += [
            Message(str(each.message_id), each.body, watched_in(each.headers))
            for each in self.server.read(self.queue)
        ]
        return list(self._found)

    async def fail(self, how: str) -> None:
        self.messages()
        match how:
            case self.down:
                await self.door.shut()
                await asyncio.sleep(0.05)  # for the sink to notice
            case "the queue is full":
                overflow = {"x-max-length": 0, "x-overflow": "reject-publish"}
                await self.server.put_queue(self.queue, **overflow)
            case "larger than the broker takes":
                await asyncio.to_thread(self.server.limit, 10)
                await self.cut()
            case "no queue takes the routing key":
                await self.server.drop_queue(self.queue)
            case "the password is wrong":
                self.server.put_user(password="another")
                await self.cut()
            case "the user may not write":
                self.server.put_user(write="elsewhere")
                await self.cut()

    async def hang(self) -> None:
        self.server.freeze()

    async def recover(self) -> None:
        self.server.thaw()
        self.server.put_user()
        if self.server.limited:
            await asyncio.to_thread(self.server.limit, None)
            await self.cut()
        await self.door.listen()
        if not await self.server.takes(self.queue):
            await self.server.put_queue(self.queue)
