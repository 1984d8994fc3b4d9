"""As much of a NATS server as it takes to answer some messages and not others.

A real one cannot be told to freeze between two of them.
"""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Self

from tests.stub_server import until

Answers = Callable[[str], bool]
"""Whether it confirms the message whose `relay-id` this is."""

_INFO = b'INFO {"max_payload":1048576,"headers":true}\r\n'


class NatsDouble:
    """Confirms what it is told to, and remembers what came."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.read: list[str] = []
        """The ids of what came, as often as it came."""
        self.accepted = 0
        self.open = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._owed: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        self.hang_up()
        await until(lambda: not self.open, what="the end of all connections")

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def catch_up(self) -> None:
        """Confirm what was not."""
        owed, self._owed = self._owed, []
        for confirm in owed:
            confirm()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        self._writers.append(writer)
        writer.write(_INFO)
        try:
            while line := await reader.readline():
                await self._take(line.split(), reader, writer)
        except ConnectionError:
            pass  # it was cut
        finally:
            self.open -= 1
            writer.close()

    async def _take(
        self, words: list[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        match words:
            case [b"PING"]:
                writer.write(b"PONG\r\n")
            case [b"HPUB", _, reply, _, size]:
                message = await reader.readexactly(int(size) + len(b"\r\n"))
                found = re.search(rb"relay-id: (\S+)\r\n", message)
                assert found is not None
                self.read.append(found[1].decode())
                proof = b'{"stream":"RELAY","seq":%d}' % len(self.read)
                answer = b"MSG %s 1 %d\r\n%s\r\n" % (reply, len(proof), proof)
                self._owed.append(partial(writer.write, answer))
                if self.answers(self.read[-1]):
                    self._owed.pop()()
