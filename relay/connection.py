"""One HTTP connection: how long it may dawdle, and how it is closed without losing an answer."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_TIMEOUT_S = 10.0
"""For a request's head to be complete, from the connection's start or the head's first byte.

uvicorn has no such limit, and whoever dawdled would hold a file descriptor for ever.
"""

LINGER_S = 2.0
"""For the rest of a body that was refused; it is read and thrown away."""


class Connection(HttpToolsProtocol):
    """Closes connections that dawdle over a head, or over the rest of a refused body."""

    _dawdling: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = _Lingering(transport, self._is_amid_a_body)
        super().connection_made(cast("asyncio.Transport", lingering))
        self._begin_to_wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_to_wait()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # None before the first request, which uvicorn's types do not say.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answered = cycle is not None and cycle.response_complete
        # Never while an answer is due: closing would cut it off.
        if self._dawdling is None and answered:
            self._begin_to_wait()

    def _is_amid_a_body(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and cycle.response_complete and cycle.more_body

    def on_headers_complete(self) -> None:
        self._end_to_wait()
        super().on_headers_complete()

    def _unsupported_upgrade_warning(self) -> None:
        # The parser leaves the body of such a request unread and would take it for the next one.
        self.cycle.keep_alive = False

    def _begin_to_wait(self) -> None:
        self._dawdling = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _end_to_wait(self) -> None:
        if self._dawdling is not None:
            self._dawdling.cancel()
            self._dawdling = None


class _Lingering:
    """A transport that, closed amid a request's body, lets the sender end and read its answer.

    Closed at once, it would answer what still comes with a reset, which takes the answer with it.
    An answer's head, which uvicorn writes by itself, waits a moment for the body: both leave in one
    packet and with one system call.
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
        else:
            self._head = data
            self._call_soon(self._flush)

    def _flush(self) -> None:
        if self._head:
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
