"""The `nats` sink's destination: a real nats-server, made to fail as operators see it fail."""

import asyncio
from typing import Any, ClassVar

from relay.core.errors import Misconfigured, Refused, Temporary
from tests.brokers.nats import PASSWORD, STREAM, NatsServer
from tests.sinks.conformance import Message, watched_in
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
