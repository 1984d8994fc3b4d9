"""The `stdout` sink: each event is one JSON line; nothing else of the relay writes to stdout."""

import asyncio
import errno
import os
import re
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import orjson

from relay.core.clock import Clock
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, SinkError, Temporary
from relay.core.event import Event
from relay.core.sink import SinkSettings
from relay.outbound import watched

_CLOSED = "stdout is closed"
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.EBADF})

Done = Callable[[SinkError | None], None]


class Settings(SinkSettings, frozen=True, kw_only=True):
    """`[[sink]]` of type stdout: nothing beyond what every sink has."""


class _LineWriter:
    """Writes whole lines: the rest of an interrupted one goes before the next."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()
        self._rest = memoryview(b"")

    def write(self, line: bytes) -> None:
        with self._lock:
            self._flush()
            self._rest = memoryview(line)
            self._flush()

    def _flush(self) -> None:
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._descriptor, self._rest) :]
            except BlockingIOError:  # the parent made the pipe non-blocking
                select.select((), (self._descriptor,), ())
            except OSError as error:
                if error.errno in _GONE:
                    self._rest = memoryview(b"")
                raise


@cache
def _line_writer(descriptor: int) -> _LineWriter:
    # The process has one stdout: two sinks, or a reload's old and new one, share it.
    return _LineWriter(descriptor)


class StdoutSink:
    """Writes in a thread of its own, so that a stalled reader blocks only this sink.

    Waiting for the pipe in the event loop would make it non-blocking, and with it every other
    descriptor of the same terminal: the shell's, and stderr.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[tuple[bytes, Done] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._turn = asyncio.Lock()
        self._written: asyncio.Future[SinkError | None] | None = None

    async def send(self, event: Event) -> SinkResponse:
        async with self._turn:
            # The line of a cancelled send; queueing more behind it would never end.
            if self._written is not None:
                await asyncio.shield(self._written)
            self._written = self._hand_over(_line(event))
            error = await asyncio.shield(self._written)
        if error is not None:
            raise error
        return SinkResponse()

    async def check(self) -> None:
        if self._descriptor is None:
            raise Misconfigured(_CLOSED)
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0)):
            raise Misconfigured(_CLOSED)

    def render(self, event: Event) -> dict[str, Any]:
        return {"line": _line(event).decode(errors="replace")}

    async def close(self) -> None:
        # Not joined, because a write may block for ever; the thread ends with its line.
        self._lines.put(None)
        self._thread = None

    def _hand_over(self, line: bytes) -> asyncio.Future[SinkError | None]:
        loop = asyncio.get_running_loop()
        written: asyncio.Future[SinkError | None] = loop.create_future()

        def done(error: SinkError | None) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(written.set_result, error)

        self._lines.put((line, done))
        if self._thread is None:
            # A daemon, because the process must end even if the reader never comes back.
            self._thread = Thread(target=self._run, name="stdout", daemon=True)
            self._thread.start()
        return written

    def _run(self) -> None:
        while (work := self._lines.get()) is not None:
            line, done = work
            done(self._write(line))

    def _write(self, line: bytes) -> SinkError | None:
        if self._descriptor is None:
            return Misconfigured(_CLOSED)
        try:
            _line_writer(self._descriptor).write(line)
        except OSError as error:
            if error.errno in _GONE:
                return Misconfigured(_CLOSED)
            return Temporary(f"stdout cannot be written: {error.strerror}")
        return None


# JSON leaves these in texts, and a terminal, or whatever shows a log, obeys them: DEL, the C1
# controls, marks of the writing direction, and ends of lines.
_INTERPRETED = re.compile(
    b"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)


def build(settings: Settings, clock: Clock) -> StdoutSink:  # noqa: ARG001
    return StdoutSink(None if sys.stdout is None else sys.stdout.fileno())


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match[0].decode())


def _line(event: Event) -> bytes:
    members: dict[str, Any] = {
        "source": event.source,
        "id": event.id,
        "event": event.kind,
        "receivedAt": event.received_ms,
    }
    if event.reconstructed:
        members["reconstructed"] = True
    if event.watch_history is not None:
        members["watched"] = watched.document(event.watch_history)
    head = orjson.dumps(members)
    # JSON has line breaks between tokens only; within a text they are escaped.
    body = event.body.replace(b"\n", b" ").replace(b"\r", b" ")
    body = _INTERPRETED.sub(_escaped, body)
    return head[:-1] + b',"body":' + body + b"}\n"
