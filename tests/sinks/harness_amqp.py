"""The `amqp` sink's far end: one real rabbitmq-server for all tests, behind a door of our own."""

import asyncio
import atexit
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from relay.errors import Misconfigured, Refused, Temporary
from tests.brokers.rabbitmq import PASSWORD, RabbitMq
from tests.sinks.conformance import Harness, Message

_NUMBERS = count()


@cache
def shared_server() -> RabbitMq:
    """Start it for the first test; it takes too long to start for each."""
    folder = TemporaryDirectory()
    server = RabbitMq(Path(folder.name))
    server.start()
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server


class Door:
    """Lets connections through to the server, counts them, and can be shut."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listening: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self.port = 0
        self.open = 0
        self.accepted = 0

    async def listen(self) -> None:
        if self._listening is None:
            self._listening = await asyncio.start_server(self._enter, "127.0.0.1", self.port)
            self.port = self._listening.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        await self.drop()

    async def drop(self) -> None:
        """Cut what goes through."""
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)
            await asyncio.sleep(0.05)  # for the sink to notice

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        task = asyncio.create_task(self._pass(reader, writer))
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        ways = [
            asyncio.create_task(_copy(reader, far_writer)),
            asyncio.create_task(_copy(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, far_writer):
                end.transport.abort()
            self.open -= 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return


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
            case "the queue is full":
                overflow = {"x-max-length": 0, "x-overflow": "reject-publish"}
                await self.server.put_queue(self.queue, **overflow)
            case "larger than the broker takes":
                await asyncio.to_thread(self.server.limit, 10)
                await self.door.drop()
            case "no queue takes the routing key":
                await self.server.drop_queue(self.queue)
            case "the password is wrong":
                self.server.put_user(password="another")
                await self.door.drop()
            case "the user may not write":
                self.server.put_user(write="elsewhere")
                await self.door.drop()

    async def hang(self) -> None:
        self.server.freeze()

    async def recover(self) -> None:
        self.server.thaw()
        self.server.put_user()
        if self.server.limited:
            await asyncio.to_thread(self.server.limit, None)
            await self.door.drop()
        await self.door.listen()
        if not await self.server.takes(self.queue):
            await self.server.put_queue(self.queue)

    def connections(self) -> int:
        return self.door.open

    def contacts(self) -> int:
        return self.door.accepted
