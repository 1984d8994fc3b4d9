"""Bases of the harnesses: a server per test, one for all tests behind a door, or an HTTP server."""

import asyncio
import atexit
from abc import abstractmethod
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, Self, TypeVar

from tests import scratch
from tests.brokers.door import Door
from tests.brokers.program import Program
from tests.sinks.conformance import Harness
from tests.stub_server import Reply, Request, StubServer

Server = TypeVar("Server", bound=Program)


class OwnServer(Harness, Generic[Server]):
    """Starts a server for each test, in a folder that is removed with it."""

    program: type[Server]

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            self.server = self.program(Path(stack.enter_context(TemporaryDirectory())))
            stack.callback(self.server.stop)
            self.server.start()
            await self.prepare()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stack.close()

    async def prepare(self) -> None:
        """Prepare the server that has started."""


class BehindDoor(Harness, Generic[Server]):
    """Shares one server with all tests, because it starts slowly, through a door for each test."""

    program: type[Server]

    async def __aenter__(self) -> Self:
        self.server = await asyncio.to_thread(shared, self.program)
        self.door = Door(self.server.port)
        await self.door.listen()
        await self.prepare()
        return self

    @abstractmethod
    async def prepare(self) -> None:
        """Prepare the server that has started."""

    async def cut(self) -> None:
        """Cut the connections, and let the sink notice."""
        await self.door.cut()
        await asyncio.sleep(0.05)

    def connections(self) -> int:
        return self.door.open

    def contacts(self) -> int:
        return self.door.accepted


def shared(program: type[Server]) -> Server:
    """Start a server for the first test; it ends with the process."""
    server = _shared(program)
    assert isinstance(server, program)
    return server


@cache
def _shared(program: type[Program]) -> Program:
    server = program(scratch.of_process())
    atexit.register(server.stop)
    server.start()
    return server


class OverHttp(Harness):
    """A sink that posts to a URL, and a server that answers by a script."""

    def __init__(self) -> None:
        self.destination = StubServer()

    async def __aenter__(self) -> Self:
        await self.recover()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destination.stop()

    @abstractmethod
    def success(self, request: Request) -> Reply: ...

    async def hang(self) -> None:
        self.destination.reply = lambda _: None

    async def recover(self) -> None:
        await self.destination.stop()
        await self.destination.listen()
        self.destination.reply = self.success

    def connections(self) -> int:
        return self.destination.open

    def contacts(self) -> int:
        return self.destination.accepted
