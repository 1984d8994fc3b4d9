"""The `nats` sink's destination: a real nats-server, made to fail as operators see it fail."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.event import Event
from tests.brokers.authority import Authority
from tests.brokers.nats import PASSWORD, STREAM, NatsServer
from tests.sinks.conformance import Message, Variety, by_source, watched_in
from tests.sinks.servers import OwnServer

WINDOW_S = 0.1
"""The shortest that there is for duplicates, because the suite sends one event many times."""


class NatsHarness(OwnServer[NatsServer]):
    program = NatsServer
    sink_type = "nats"
    secrets = (PASSWORD, "marked")
    failures: ClassVar = {
        "nobody listens": Temporary,
        "the stream is full": Temporary,
        "larger than the stream takes": Refused,
        "no stream takes the subject": Misconfigured,
        "another stream takes the subject": Misconfigured,
        "the password is wrong": Misconfigured,
        "the user may not publish": Misconfigured,
        "the user may not subscribe": Misconfigured,
    }
    reasons: ClassVar = {
        "nobody listens": "connection refused",
        "the stream is full": "10077: the stream is full and discards what is new",
        "larger than the stream takes": "10054: larger than the stream's max_msg_size",
        "no stream takes the subject": "no stream takes the subject relay.{{ event }}",
        "another stream takes the subject": "10060: the subject belongs to another stream",
        "the password is wrong": "wrong user, password, token or credentials",
        "the user may not publish": "the user may not publish to this subject",
        "the user may not subscribe": "the user may not subscribe to _INBOX.>, where replies",
    }
    bare: ClassVar = {"servers": "nats://127.0.0.1"}
    shown: ClassVar = {"subject": "relay.lead.captured"}
    faults: ClassVar = (
        ({"servers": "http://marked.example"}, "servers: expected nats:// or tls:// addresses"),
        ({"servers": "nats://marked:password@"}, "servers: expected"),
        ({"servers": "nats://marked:70000"}, "servers: expected"),
        ({"servers": "nats://a,,nats://b"}, "servers: expected"),
        ({"subject": "relay.>"}, "subject: does not fit: expected words with dots between"),
        ({"subject": "relay..x"}, "subject: does not fit: expected words"),
        ({"subject": "relay.{{ nothing }}"}, "subject: line 1: no such name: nothing"),
        ({"subject": "relay.{{ data.nix }}"}, "subject: line 1: nix is missing in this event"),
        ({"ca_file": "/nowhere"}, "ca_file: cannot be read: No such file"),
        ({"client_key_file": "/nowhere"}, "client_key_file: needs client_cert_file"),
        ({"client_cert_file": "/nowhere"}, "client_cert_file, client_key_file: cannot be read"),
        ({"credentials_file": "/nowhere"}, "credentials_file: cannot be read"),
        ({"credentials_file": __file__}, "credentials_file: holds no user JWT with an NKEY"),
    )
    peer = "server"
    deviations: ClassVar = {
        "retry_after_is_kept_in_both_forms": "a NATS server does not ask for a pace",
    }

    def __init__(self) -> None:
        super().__init__()
        self._undo = self.prepare

    def table(self) -> dict[str, Any]:
        return {"servers": self.server.url, "stream": STREAM}

    def messages(self) -> list[Message]:
        return [
            Message((each.headers or {})["relay-id"], each.data, watched_in(each.headers or {}))
            for each in self.server.read()
        ]

    async def fail(self, how: str) -> None:
        await asyncio.sleep(WINDOW_S)  # for what came last to be no duplicate any more
        server, self._undo = self.server, self.prepare
        match how:
            case self.down:
                server.kill()
            case "the stream is full":
                await server.put_stream(max_bytes=1)
            case "larger than the stream takes":
                await server.put_stream(max_msg_size=10)
            case "no stream takes the subject":
                await server.put_stream(subjects=["elsewhere"])
            case "another stream takes the subject":
                await server.put_stream(subjects=["elsewhere"])
                await self._put_other()
                self._undo = self._drop_other
            case _:
                self._undo = self._reload
                await server.reload(**RELOADS[how])

    async def vary(self, event: Event) -> Variety:
        return by_source(event, "subject", good="relay.x", bad="elsewhere", unfit="x" * 2000)

    async def limit(self) -> int:
        return 1 << 20  # the server's own max_payload

    async def secure(self, folder: Path) -> tuple[Authority, Mapping[str, Any]]:
        authority = Authority(folder)
        pair = authority.issue("server")
        files = f'cert_file: "{pair}", key_file: "{pair}", ca_file: "{authority.file}"'
        self.server.configure(more=f"tls {{ {files}, verify: true }}")
        self.server.kill()
        self.server.start()
        return authority, {"servers": self.server.url}

    def without_tls(self) -> Mapping[str, Any]:
        return {"servers": self.server.url.replace("nats:", "tls:")}

    async def hang(self) -> None:
        self.server.freeze()
        self._undo = self.prepare

    async def recover(self) -> None:
        self.server.restart()
        self.server.thaw()
        await self._undo()
        await asyncio.sleep(WINDOW_S)  # one that failed may be stored all the same

    def connections(self) -> int:
        return self.server.connections()

    def contacts(self) -> int:
        return self.server.connections("all")

    async def _put_other(self) -> None:
        async with self.server.jetstream() as js:
            await js.add_stream(name="OTHER", subjects=["relay.>"])

    async def _drop_other(self) -> None:
        async with self.server.jetstream() as js:
            await js.delete_stream("OTHER")
        await self.prepare()

    async def prepare(self) -> None:
        await self.server.put_stream(duplicate_window=WINDOW_S)

    async def _reload(self) -> None:
        await self.server.reload()


RELOADS = {
    "the password is wrong": {"password": "another"},
    "the user may not publish": {"publish": "elsewhere"},
    "the user may not subscribe": {"subscribe": "elsewhere"},
}
