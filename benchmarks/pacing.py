"""Requests sent at a rate, on a clock finer than an event loop's.

An event loop's timers fire at whole milliseconds, which would count as the server's.
"""

import re
import selectors
import socket
import time
from array import array
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

_READ_BYTES = 65536
_LEAD_NS = 50_000_000
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answers(NamedTuple):
    """When each request was due and answered (monotonic ns; 0 without an answer).

    `fault` says why the load ended before its last request, if it did.
    """

    due_ns: Sequence[int]
    answered_ns: Sequence[int]
    fault: str


def send(port: int, requests: Sequence[bytes], *, rate: float, connections: int) -> Answers:
    """Send each request at its time, and wait for all answers; ends at the first fault.

    A request waits for an idle connection, and that counts as waiting for its answer.
    """
    pacer = _Pacer(port, requests, rate=rate, connections=connections)
    try:
        return pacer.run()
    finally:
        pacer.close()


class _Connection:
    """A kept connection with one request on it at most."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = -1
        self._received = b""

    def receive(self) -> bytes:
        """Read what has arrived; return the status of an answer that is complete, else b""."""
        read = self.socket.recv(_READ_BYTES)
        if not read:
            raise ConnectionResetError("the server closed a connection")
        self._received += read
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or len(body) < (int(length[1]) if length else 0):
            return b""
        self._received = b""
        return head[9:12]


class _Pacer:
    """One thread sends, the other receives; nothing in their loops makes garbage to collect."""

    def __init__(
        self, port: int, requests: Sequence[bytes], *, rate: float, connections: int
    ) -> None:
        self._requests = requests
        self._connections = [_Connection(port) for _ in range(connections)]
        self._idle: SimpleQueue[_Connection | None] = SimpleQueue()
        for each in self._connections:
            self._idle.put(each)
        began_ns = time.monotonic_ns() + _LEAD_NS
        self._due_ns = array(
            "q", (began_ns + int(number / rate * 1e9) for number in range(len(requests)))
        )
        self._answered_ns = array("q", bytes(8 * len(requests)))
        self._fault = ""

    def run(self) -> Answers:
        sender = Thread(target=self._send, daemon=True)
        sender.start()
        try:
            self._receive()
        except OSError as error:
            self._fault = str(error)
        self._idle.put(None)
        sender.join()
        return Answers(self._due_ns, self._answered_ns, self._fault)

    def close(self) -> None:
        for each in self._connections:
            each.socket.close()

    def _send(self) -> None:
        for number, (due_ns, request) in enumerate(zip(self._due_ns, self._requests, strict=True)):
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            connection = self._idle.get()
            if connection is None or self._fault:
                return
            connection.number = number
            try:
                connection.socket.sendall(request)
            except OSError:
                # The receiver sees the same fault.
                return

    def _receive(self) -> None:
        left = len(self._requests)
        with selectors.DefaultSelector() as selector:
            for each in self._connections:
                selector.register(each.socket, selectors.EVENT_READ, each)
            while left:
                for key, _ in selector.select():
                    connection: _Connection = key.data
                    status = connection.receive()
                    if not status:
                        continue
                    if not status.startswith(b"2"):
                        self._fault = f"answered {status.decode()}"
                        return
                    self._answered_ns[connection.number] = time.monotonic_ns()
                    self._idle.put(connection)
                    left -= 1
