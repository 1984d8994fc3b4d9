"""A destination below HTTP: a listener on loopback whose connections are driven byte by byte."""

import asyncio
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.loop_watch import PlainLoop, UvLoop
from tests.stub_server import DEADLINE_S

LOOPS = {"asyncio": PlainLoop, "uvloop": UvLoop}
"""Tests' loop, and the one that the relay runs on."""


class Wire:
    """One connection at the destination."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def take(self, size: int = 65536) -> bytes:
        """Return what has come, b"" at the end."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._loop.sock_recv(self._sock, size)

    async def take_all(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size and (piece := await self.take()):
            taken += piece
        return bytes(taken)

    async def say(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    def say_now(self, data: bytes) -> None:
        """Say it without a turn of the loop."""
        assert self._sock.send(data) == len(data)

    def end(self) -> None:
        """Say no more, but listen."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    def reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    @property
    def segments(self) -> int:
        """So many with data have come: `tcpi_data_segs_in` of Linux."""
        told: bytes = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (count,) = struct.unpack_from("I", told, 152)
        return int(count)


class Wires:
    """Listens on a port of `host`; closes what it accepted when it is left."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, backlog: int = 100) -> None:
        self._listener = socket.create_server((host, port), backlog=backlog)
        self._listener.settimeout(0)
        self.port: int = self._listener.getsockname()[1]
        self.accepted: list[Wire] = []
        self._pending: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def accept(self) -> Wire:
        async with asyncio.timeout(DEADLINE_S):
            sock, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self.accepted.append(Wire(sock))
        return self.accepted[-1]

    def accept_now(self) -> Wire:
        """Accept a connection that is complete, without a turn of the loop."""
        self.accepted.append(Wire(self._listener.accept()[0]))
        return self.accepted[-1]

    def fall_silent(self) -> None:
        """Leave no room for another connection: Linux then drops what asks for one."""
        self._listener.listen(0)
        for _ in range(3):
            sock = socket.socket()
            sock.settimeout(0)
            sock.connect_ex(self._listener.getsockname())
            self._pending.append(sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for sock in self._pending:
            sock.close()
        for wire in self.accepted:
            wire.close()


def sockets() -> set[int]:
    """The sockets for IP that this process has open, by inode: uvloop keeps some of its own."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            if each.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(each.name))) as sock:
                    if sock.family == socket.AF_INET:
                        found.add(os.fstat(sock.fileno()).st_ino)
    return found


def refusing_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
