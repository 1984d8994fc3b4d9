"""A standard stream that never waits for its reader: lines it does not take in time are dropped.

A full pipe, as of a journal that hangs, would block the event loop, and with it requests and
signals.
"""

import atexit
import io
import os
import select
import time
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable

BYTES_MAX = 2 << 20
LINES_MAX = 10_000
"""Bounds of the buffer; the second one is for short lines, whose overhead counts."""

GATHER_S = 0.01
"""Pause in which lines gather for a write: each one takes the interpreter's lock from the loop."""

STALL_S = 1.0
DRAIN_S = 5.0
"""At its end the process waits for as long as the reader reads on, and at most for this long."""


class LineBuffer(io.RawIOBase):
    """Passes lines to a thread, which writes them to the descriptor; `write` never blocks.

    Once full, it drops all lines until half of it is free, so that the gap is in one place.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Both are reentrant: while a line is added, the garbage collector may run code that logs.
        self._lines: SimpleQueue[bytes | Event] = SimpleQueue()
        self._lock = RLock()
        self._waiting = self._waiting_bytes = self._written = 0
        self._is_full = False
        self._error: OSError | None = None
        self._unreported = 0
        self.dropped = 0
        """Lines that the reader did not get."""
        self.report: Callable[[int], object] = lambda _: None
        """Called on the writing thread, with the number of dropped lines, once lines flow again."""
        # A daemon, because the process must end even if the reader never comes back.
        Thread(target=self._run, name="log", daemon=True).start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Take a line; raises the OSError of an earlier one, as of a reader that has gone."""
        line = bytes(data)
        if not line:
            # Click tries out with it whether this is a binary stream.
            return 0
        with self._lock:
            waiting_bytes = self._waiting_bytes + len(line)
            if self._is_full or waiting_bytes > BYTES_MAX or self._waiting == LINES_MAX:
                # With nothing to write, nothing would find it free again: the line is too long.
                self._is_full = self._waiting > 0
                self._count_dropped(line)
            else:
                self._waiting += 1
                self._waiting_bytes = waiting_bytes
                self._lines.put(line)
            error, self._error = self._error, None
        if error is not None:
            raise error
        return len(line)

    def drain(self) -> None:
        """Wait until the lines so far are written, while the reader reads and for a bounded time.

        At the end of a process: its last lines are the ones that say why it ends.
        """
        written = Event()
        self._lines.put(written)
        for _ in range(round(DRAIN_S / STALL_S)):
            before = self._written
            if written.wait(STALL_S) or self._written == before:
                return

    def _run(self) -> None:
        while True:
            self._write_all(self._lines.get())
            time.sleep(GATHER_S)

    def _write_all(self, line: bytes | Event) -> None:
        """Write a line and those that wait behind it, as many at once as a pipe keeps together."""
        batch: list[bytes] = []
        size = 0
        while True:
            if isinstance(line, Event):
                self._write_batch(batch)
                batch, size = [], 0
                line.set()
            else:
                if size + len(line) > select.PIPE_BUF:
                    self._write_batch(batch)
                    batch, size = [], 0
                batch.append(line)
                size += len(line)
            if self._lines.empty():
                self._write_batch(batch)
                return
            line = self._lines.get()

    def _write_batch(self, batch: list[bytes]) -> None:
        if not batch:
            return
        data = b"".join(batch)
        error = self._write_out(data)
        with self._lock:
            self._waiting -= len(batch)
            self._written += len(batch)
            self._waiting_bytes -= len(data)
            if self._waiting_bytes <= BYTES_MAX // 2 and self._waiting <= LINES_MAX // 2:
                self._is_full = False
            if error is not None:
                self._error = error
                self._count_dropped(data)
            elif self._unreported and not self._is_full:
                dropped, self._unreported = self._unreported, 0
                self.report(dropped)

    def _write_out(self, line: bytes) -> OSError | None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # the parent made it non-blocking
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError as error:
                return error
        return None

    def _count_dropped(self, data: bytes) -> None:
        lines = data.count(b"\n") or 1
        self.dropped += lines
        self._unreported += lines


def buffered(stream: TextIO) -> TextIO:
    """Return a stream to the same descriptor that never blocks; it is drained at the exit."""
    buffer = LineBuffer(stream.fileno())
    text = io.TextIOWrapper(
        cast("BinaryIO", buffer),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
    atexit.register(drain, text)
    return text


def drain(stream: TextIO | None) -> None:
    """Wait for a short time until all is written, also a line without its end."""
    buffer = find(stream)
    if stream is None or buffer is None:
        return
    # The error of an earlier line, or a stream that somebody has closed.
    with suppress(OSError, ValueError):
        stream.flush()
    buffer.drain()


def find(stream: TextIO | None) -> LineBuffer | None:
    """Return the buffer of a stream that `buffered` made."""
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, LineBuffer) else None
