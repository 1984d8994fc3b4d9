"""A TCP proxy, so that a connection can be cut, held or led elsewhere while its server goes on.

Run as a program with two ports, its own and the server's, it is a door that can be killed.
"""

import asyncio
import sys


class Door:
    """Counts what passes it."""

    def __init__(self, server_port: int, *, port: int = 0) -> None:
        self.leads_to = server_port
        """Of connections that come from now on."""
        self.port = port
        self.open = 0
        self.accepted = 0
        self.is_mute = False
        """Whether what the server says is lost on the way back."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._listening: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Take connections, always on the same port; may be called twice."""
        if self._listening is None:
            self._listening = await asyncio.start_server(self._enter, "127.0.0.1", self.port)
            self.port = self._listening.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse connections, and cut those that there are; may be called twice."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        await self.cut()

    async def cut(self) -> None:
        """End what passes, and with it all that was held."""
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)
        self._flows.set()

    def hold(self) -> None:
        """Let nothing pass in either direction."""
        self._flows.clear()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open += 1
        task = asyncio.create_task(self._connect(reader, writer))
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.leads_to)
            try:
                await self._pass((reader, far_writer), (far_reader, writer))
            finally:
                far_writer.transport.abort()
        finally:
            writer.transport.abort()
            self.open -= 1

    async def _pass(
        self,
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        back: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        ways = [
            asyncio.create_task(self._copy(*there, is_answer=False)),
            asyncio.create_task(self._copy(*back, is_answer=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._flows.wait()
                if self.is_mute and is_answer:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            return


async def _serve(port: int, server_port: int) -> None:
    door = Door(server_port, port=port)
    await door.listen()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
