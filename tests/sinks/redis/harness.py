"""The `redis` sink's far end: a real redis-server, made to fail as operators see it fail."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

from relay.core.errors import Misconfigured, Temporary
from tests.brokers.redis import PASSWORD, STREAM, RedisServer
from tests.sinks.conformance import Harness, Message


class RedisHarness(Harness):
    sink_type = "redis"
    raw = True
    down = "nobody listens"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        down: Temporary,
        "the memory is full": Temporary,
        "it is a replica": Temporary,
        "it has too few replicas": Temporary,
        "the password is wrong": Misconfigured,
        "the user may not add": Misconfigured,
        "the key holds something else": Misconfigured,
    }
    wrong: ClassVar = {
        "url": 1,
        "stream": 1,
        "format": "xml",
        "ca_file": 1,
        "client_cert_file": 1,
        "client_key_file": 1,
        "concurrency": "many",
    }
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "a Redis server does not ask for a pace",
        "a_refusal_is_of_this_event_alone": "no limit can be set that the sample events exceed",
    }

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._before = 0

    async def __aenter__(self) -> Self:
        self.server = RedisServer(Path(self._folder.name))
        self.server.start()
        self._before = self.server.accepted()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        self._folder.cleanup()

    def table(self) -> dict[str, Any]:
        return {"url": self.server.url}

    def messages(self) -> list[Message]:
        entries = self.server.read()
        return [Message(fields[b"id"].decode(), fields[b"body"]) for fields in entries]

    async def fail(self, how: str) -> None:
        FAILURES[how](self.server)
        await self._noticed()

    async def hang(self) -> None:
        self.server.freeze()

    async def recover(self) -> None:
        self.server.restart()
        self.server.thaw()
        self.server.set_user()
        self.server.configure(maxmemory=0, min_replicas_to_write=0)
        with closing(self.server.admin()) as admin:
            admin.replicaof("NO", "ONE")
            if admin.type(STREAM) == b"string":
                admin.delete(STREAM)
            if admin.exists("aside"):
                admin.rename("aside", STREAM)
        await self._noticed()

    async def _noticed(self) -> None:
        """Let the sink's loop, which stood still, read the end of connections that were cut."""
        await asyncio.sleep(0.05)

    def connections(self) -> int:
        return self.server.connections()

    def contacts(self) -> int:
        # Each look is a connection, too.
        self._before += 1
        return self.server.accepted() - self._before


def occupy(server: RedisServer) -> None:
    with closing(server.admin()) as admin:
        if admin.exists(STREAM):
            admin.rename(STREAM, "aside")
        admin.set(STREAM, "else")


def demote(server: RedisServer) -> None:
    with closing(server.admin()) as admin:
        admin.replicaof("127.0.0.1", str(server.port))


FAILURES: dict[str, Callable[[RedisServer], None]] = {
    "nobody listens": RedisServer.kill,
    "the memory is full": lambda server: server.configure(maxmemory=1),
    "it is a replica": demote,
    "it has too few replicas": lambda server: server.configure(min_replicas_to_write=1),
    "the password is wrong": lambda server: server.set_user(password="another"),
    "the user may not add": lambda server: server.set_user(rights="+@all -xadd"),
    "the key holds something else": occupy,
}
