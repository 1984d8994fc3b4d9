"""The `redis` sink's destination: a real redis-server, made to fail as operators see it fail."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Temporary
from relay.core.event import Event
from tests.brokers.authority import Authority
from tests.brokers.redis import PASSWORD, STREAM, RedisServer
from tests.ports import free_port
from tests.sinks.conformance import (
    CERTIFICATES_ASKED_FOR,
    Message,
    Variety,
    by_source,
    watched_in,
)
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
    reasons: ClassVar = {
        "the memory is full": "OOM: the server is at its maxmemory",
        "it is a replica": "READONLY: ",
        "it has too few replicas": "NOREPLICAS: ",
        "the password is wrong": "WRONGPASS: wrong user or password",
        "the user may not add": "NOPERM: the user may not XADD to this stream, or SELECT",
        "the key holds something else": "WRONGTYPE: ",
    }
    bare: ClassVar = {"url": "redis://127.0.0.1"}
    shown: ClassVar = {"stream": "relay"}
    faults: ClassVar = (
        ({"url": "http://marked.example"}, "url: expected redis:// or rediss:// and a host"),
        ({"url": "redis://:marked@"}, "url: expected redis://"),
        ({"url": "redis://marked:70000"}, "url: expected redis://"),
        ({"url": "redis://a/marked"}, "url: expected nothing but the number"),
        ({"url": "rediss://a?ssl_cert_reqs=none"}, "url: expected nothing but"),
        ({"ca_file": "/nowhere"}, "url: expected rediss://"),
        ({"url": "rediss://a", "ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"url": "rediss://a", "client_key_file": "/x"}, "client_key_file: needs client_cert_file"),
        ({"url": "rediss://a", "client_cert_file": "/x"}, "client_cert_file, client_key_file: "),
        (
            {"url": "redis://:marked@main:6379", "sentinel": {"hosts": ["a:26379"]}},
            "url: expected the master's name as the host, and no port",
        ),
        (
            {"url": "redis://[::1]/", "sentinel": {"hosts": ["a:26379"]}},
            "url: expected the master's name",
        ),
        ({"sentinel": {"hosts": []}}, "sentinel.hosts: is empty"),
        ({"stream": ""}, "stream: is empty"),
        ({"stream": "{{ nothing }}"}, "stream: line 1: no such name: nothing"),
    )
    peer = "server"
    deviations: ClassVar = {
        **dict.fromkeys(
            CERTIFICATES_ASKED_FOR,
            "the server's reset may overtake its alert, and nobody asks again",
        ),
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

    async def vary(self, event: Event) -> Variety:
        with closing(self.server.admin()) as admin:
            admin.set("bad", "no stream")
        return by_source(event, "stream", good=STREAM, bad="bad", unfit="")

    async def limit(self) -> int:
        self.server.configure(proto_max_bulk_len=1 << 20)
        return 1 << 20

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        authority, port = Authority(folder), free_port()
        pair = authority.issue("server")
        files = f"tls-cert-file {pair}\ntls-key-file {pair}\ntls-ca-cert-file {authority.file}"
        self.server.restart_with(f"tls-port {port}\n{files}")
        return authority, {"url": self._secure_url(port)}

    def without_tls(self) -> Mapping[str, Any]:
        return {"url": self._secure_url(self.server.port)}

    def _secure_url(self, port: int) -> str:
        url = self.server.url.replace("redis:", "rediss:")
        return url.replace(f":{self.server.port}/", f":{port}/")

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
