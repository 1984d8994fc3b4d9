"""The `amqp` sink's far end: one real rabbitmq-server for all tests, behind a door of our own."""

import asyncio
import atexit
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from relay.core.errors import Misconfigured, Refused, Temporary
from tests.brokers.door import Door
from tests.brokers.rabbitmq import PASSWORD, RabbitMq
from tests.sinks.conformance import Harness, Message

_NUMBERS = count()


@cache
def shared_server() -> RabbitMq:
    """Start it for the first test; it takes too long to start for each."""
    folder = TemporaryDirectory()
    server = RabbitMq(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    server.start()
    return server


class AmqpHarness(Harness):
    sink_type = "amqp"
    raw = True
    down = "nobody listens"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        down: Temporary,
        "the queue is full": Temporary,
        "larger than the broker takes": Refused,
        "no queue takes the routing key": Misconfigured,
        "the password is wrong": Misconfigured,
        "the user may not write": Misconfigured,
    }
    wrong: ClassVar = {
        "url": 1,
        "exchange": 1,
        "routing_key": 1,
        "format": "xml",
        "ca_file": 1,
        "client_cert_file": 1,
        "client_key_file": 1,
        "concurrency": "many",
    }
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "RabbitMQ does not ask for a pace",
    }

    def __init__(self) -> None:
        self.queue = f"relay-{next(_NUMBERS)}"
        self._found: list[Message] = []

    async def __aenter__(self) -> Self:
        self.server = await asyncio.to_thread(shared_server)
        self.door = Door(self.server.port)
        await self.door.listen()
        await self.server.put_queue(self.queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.recover()
        await self.door.shut()
        await self.server.drop_queue(self.queue)

    def table(self) -> dict[str, Any]:
        url = self.server.url.replace(f":{self.server.port}", f":{self.door.port}")
        return {"url": url, "routing_key": self.queue}

    def messages(self) -> list[Message]:
        self._found += [
            Message(str(each.message_id), each.body) for each in self.server.read(self.queue)
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
                await self._cut()
            case "no queue takes the routing key":
                await self.server.drop_queue(self.queue)
            case "the password is wrong":
                self.server.put_user(password="another")
                await self._cut()
            case "the user may not write":
                self.server.put_user(write="elsewhere")
                await self._cut()

    async def hang(self) -> None:
        self.server.freeze()

    async def recover(self) -> None:
        self.server.thaw()
        self.server.put_user()
        if self.server.limited:
            await asyncio.to_thread(self.server.limit, None)
            await self._cut()
        await self.door.listen()
        if not await self.server.takes(self.queue):
            await self.server.put_queue(self.queue)

    async def _cut(self) -> None:
        await self.door.cut()
        await asyncio.sleep(0.05)  # for the sink to notice

    def connections(self) -> int:
        return self.door.open

    def contacts(self) -> int:
        return self.door.accepted
