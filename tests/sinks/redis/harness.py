"""The `redis` sink's destination: a real redis-server, made to fail as operators see it fail."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Temporary
from tests.brokers.redis import PASSWORD, STREAM, RedisServer
from tests.sinks.conformance import Message, watched_in
from tests.sinks.servers import OwnServer


class RedisHarness(OwnServer[RedisServer]):
    program = RedisServer
    sink_type = "redis"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        "nobody listens": Temporary,
        "the memory is full": Temporary,
        "it is a replica": Temporary,
        "it has too few replicas": Temporary,
        "the password is wrong": Misconfigured,
        "the user may not add": Misconfigured,
        "the key holds something else": Misconfigured,
    }
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "a Redis server does not ask for a pace",
        "a_refusal_is_of_this_event_alone": "no limit can be set that the sample events exceed",
    }

    async def prepare(self) -> None:
        self._before = self.server.accepted()

    def table(self) -> dict[str, Any]:
        return {"url": self.server.url}

    def messages(self) -> list[Message]:
        entries = self.server.read()
        return [
            Message(
                fields[b"id"].decode(),
                fields[b"body"],
                watched_in({name.decode(): value.decode() for name, value in fields.items()}),
            )
            for fields in entries
        ]

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
