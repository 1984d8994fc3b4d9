"""The `amqp` sink's destination: one real rabbitmq-server for all tests, behind a door."""

import asyncio
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from tests.brokers.authority import Authority
from tests.brokers.rabbitmq import PASSWORD, RabbitMq
from tests.sinks.conformance import Message, Variety, by_source, watched_in
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
    reasons: ClassVar = {
        "nobody listens": "connection refused",
        "the queue is full": "the queue rejects what is new: it is full, or its leader is away",
        "larger than the broker takes": "larger than the broker's max_message_size",
        "no queue takes the routing key": "no queue takes the routing key of lead.captured",
        "the password is wrong": "wrong user or password",
        "the user may not write": "the user may not write to the exchange",
    }
    bare: ClassVar = {"url": "amqp://127.0.0.1"}
    shown: ClassVar = {"routing_key": "lead.captured"}
    faults: ClassVar = (
        ({"url": "http://127.0.0.1"}, "url: expected amqp://"),
        ({"url": "amqp://127.0.0.1/?no_verify_ssl=1"}, "url: nothing may follow"),
        ({"ca_file": "x"}, "url: expected amqps://"),
        ({"url": "amqps://127.0.0.1", "ca_file": "/nowhere"}, "ca_file: cannot be read"),
        ({"url": "amqps://127.0.0.1", "client_key_file": "x"}, "client_key_file: needs"),
        ({"routing_key": "{{ nothing }}"}, "routing_key: "),
        ({"routing_key": "x" * 256}, "routing_key: is longer"),
        ({"exchange": "x" * 128}, "exchange: expected at most 127 letters"),
        ({"exchange": "{nowhere}"}, "exchange: expected at most 127 letters"),
    )
    peer = "broker"
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "RabbitMQ does not ask for a pace",
    }

    def __init__(self) -> None:
        self.queue = f"relay-{next(_NUMBERS)}"
        self._found: list[Message] = []
        self._has_changed_queue = False

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
        if how == self.down:
            await self.door.shut()
            await asyncio.sleep(0.05)  # for the sink to notice
            return
        self.messages()
        self._has_changed_queue = "queue" in how
        match how:
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

    async def vary(self, event: Event) -> Variety:
        return by_source(event, "routing_key", good=self.queue, bad="nowhere", unfit="x" * 256)

    async def limit(self) -> int:
        await asyncio.to_thread(self.server.limit, 5000)
        return 5000

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        del folder
        return self.server.authority, {"url": self.server.tls_url}

    def without_tls(self) -> Mapping[str, Any]:
        return {"url": self.table()["url"].replace("amqp:", "amqps:")}

    async def hang(self) -> None:
        self.server.freeze()

    async def recover(self) -> None:
        self.server.thaw()
        self.server.put_user()
        if self.server.limited:
            await asyncio.to_thread(self.server.limit, None)
            await self.cut()
        await self.door.listen()
        if self._has_changed_queue:
            await self.server.put_queue(self.queue)
            self._has_changed_queue = False
