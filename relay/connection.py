"""One HTTP connection: how long it may dawdle, and how it is closed without losing an answer."""

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_TIMEOUT_S = 10.0
"""For a request's head to be complete, from the connection's start or the head's first byte.

uvicorn has no such limit, and whoever dawdled would hold a file descriptor for ever.
"""

HEAD_MAX = 64 * 1024
"""Bytes that may come in a row and be neither a whole head nor of a body; a read more may pass.

The parser has no such limit, and with each piece it copies all that it has of a line, so that a
few strangers could hold up every acknowledgement.
"""

LINGER_S = 2.0
"""For the rest of what was refused; it is read and thrown away."""


class Connection(HttpToolsProtocol):
    """Closes connections that dawdle over a head, or over the rest of a refused body.

    What was asked before it went wrong is answered, in its order.
    """

    _dawdling: asyncio.TimerHandle | None = None
    _unused = 0
    _deaf = False
    _retiring = False

    def __init__(self, *arguments: Any, unread: Callable[[], None], **named: Any) -> None:
        """`unread` is told of what is answered 400 because it is no HTTP, and no request yet."""
        super().__init__(*arguments, **named)
        self._tell_unread = unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = _Lingering(transport, self._may_have_more)
        super().connection_made(cast("asyncio.Transport", lingering))
        self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_to_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Of a request behind the last answer nobody would hear.
        if self._deaf or self.transport.is_closing():
            return
        self._unused += len(data)
        super().data_received(data)
        if self._unused > HEAD_MAX and not self._deaf:
            self.send_400_response("Request head too large.")
        # None before the first request, which uvicorn's types do not say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is not None and cycle.response_complete
        # Never while an answer is due: closing would cut it off.
        if self._dawdling is None and answered:
            self._begin_to_wait()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A sender may end its side and still wait for its answer; True keeps ours open for it."""
        if self._owes_an_answer():
            self.cycle.keep_alive = False
            return True
        return False

    def retire(self) -> None:
        """Close behind the next answer, the one that is due or one to come."""
        self._retiring = True
        # None before the first request, which uvicorn's types do not say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None:
            cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close at once what idles; what has been asked something, read or not, is answered."""
        self.retire()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        idles = cycle is None or cycle.response_complete
        if idles and not _unread(self.transport):
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._deaf = True
        if self._owes_an_answer():
            self.cycle.keep_alive = False
            return
        # Amid a body the app has the request, and counts it.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            self._tell_unread()
        super().send_400_response(msg)

    def _owes_an_answer(self) -> bool:
        """Whether a whole request waits for its answer."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        whole = cycle is not None and not cycle.response_complete and not cycle.more_body
        return whole or bool(self.pipeline)

    def _may_have_more(self) -> bool:
        """Whether the sender may be amid a body, or a head, that was refused."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        amid_a_body = cycle is not None and cycle.response_complete and cycle.more_body
        return amid_a_body or self._unused > HEAD_MAX

    def on_headers_complete(self) -> None:
        self._unused = 0
        self._end_to_wait()
        super().on_headers_complete()
        if self._retiring:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        super().on_body(body)

    def _unsupported_upgrade_warning(self) -> None:
        # The parser leaves the body of such a request unread and would take it for the next one.
        self.cycle.keep_alive = False

    def _begin_to_wait(self) -> None:
        self._dawdling = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _end_to_wait(self) -> None:
        if self._dawdling is not None:
            self._dawdling.cancel()
            self._dawdling = None


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the kernel holds for the connection; with them, closing would be a reset."""
    connection = transport.get_extra_info("socket")
    try:
        waiting = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return 0
    (count,) = struct.unpack("i", waiting)
    return int(count)


class _Lingering:
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
