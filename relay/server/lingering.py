"""Lingering close: a response that the peer has not read yet is not cut off."""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any

LINGER_S = 2.0
"""Time in which the rest of a refused request is read and dropped."""


def unread(transport: asyncio.Transport) -> int:
    """Return how many received bytes are unread; with any, a close would be a reset."""
    connection = transport.get_extra_info("socket")
    try:
        waiting = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return 0
    (count,) = struct.unpack("i", waiting)
    return int(count)


class Lingering:
    """A transport whose close, within a request, lets the sender finish and read its response.

    An immediate close would answer further bytes with a reset, and the response would be lost.
    A response's head waits a moment for its body, so that both leave in one packet.
    Writes after the close are dropped, because uvloop would raise.
    """

    def __init__(self, transport: asyncio.Transport, is_amid: Callable[[], bool]) -> None:
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._is_amid = is_amid
        self._lingers = False
        self._head = b""
        self._is_held = self._is_paused = self._reads_nothing = False

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

    def hold(self, *, is_held: bool) -> None:
        """Read nothing while it is held, whatever the server asks for."""
        self._is_held = is_held
        self._read_or_not()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        reads_nothing = self._is_held or self._is_paused
        if reads_nothing != self._reads_nothing and not self.is_closing():
            self._reads_nothing = reads_nothing
            if reads_nothing:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        if self._lingers or self._transport.is_closing() or not self._is_amid():
            self._transport.close()
            return
        self._lingers = True
        self._transport.write_eof()
        # uvicorn may have paused it over an unread body.
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
