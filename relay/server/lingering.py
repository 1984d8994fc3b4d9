"""Closing a connection without losing an answer that its far side has not read yet."""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
"""For the rest of what was refused; it is read and thrown away."""


def unread(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds for the connection; with them, closing would be a reset."""
    connection = transport.get_extra_info("socket")
    try:
        waiting = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return 0
    (count,) = struct.unpack("i", waiting)
    return int(count)


class Lingering:
    """A transport that, closed amid a request, lets the sender end and read its answer.

    Closed at once, it would answer what still comes with a reset, which takes the answer with it.
    An answer's head, which uvicorn writes by itself, waits a moment for the body: both leave in one
    packet and with one system call.
    What is written after the close is dropped: uvloop would raise.
    """

    def __init__(self, transport: asyncio.Transport, is_amid: Callable[[], bool]) -> None:
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._is_amid = is_amid
        self._lingers = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            self._transport.write(self._head + data)
            self._head = b""
        elif not self.is_closing():
            self._head = data
            self._call_soon(self._flush)

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        if self._lingers or not self._is_amid():
            self._transport.close()
            return
        self._lingers = True
        self._transport.write_eof()
        # uvicorn may have paused it over a body that nobody reads.
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
