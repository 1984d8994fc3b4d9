"""The load generator keeps its rate, and counts late starts as waiting."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest

from benchmarks import pacing

REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        assert self.rfile.read(2) == b"ab"
        status = self.statuses.pop(0) if self.statuses else 202
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_every_request_is_due_at_its_time_and_answered_after_it(port: int) -> None:
    answers = pacing.send(port, [REQUEST] * 100, rate=1_000, connections=4)
    assert answers.fault == ""
    steps = {later - due for due, later in zip(answers.due_ns, answers.due_ns[1:], strict=False)}
    assert max(steps) <= 1_000_001
    assert all(done > due for due, done in zip(*answers[:2], strict=True))


def test_waiting_for_a_connection_counts(port: int) -> None:
    answers = pacing.send(port, [REQUEST] * 50, rate=1_000_000, connections=1)
    waits = [done - due for due, done in zip(*answers[:2], strict=True)]
    assert waits[-1] > waits[0]
    assert waits[-1] > 0.5 * (max(answers.answered_ns) - min(answers.answered_ns))


def test_an_answer_other_than_2xx_ends_the_load_and_is_named(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "statuses", [202, 503])
    answers = pacing.send(port, [REQUEST] * 5, rate=100, connections=1)
    assert answers.fault == "answered 503"
    assert [bool(done) for done in answers.answered_ns] == [True, False, False, False, False]


def test_a_connection_that_the_server_closes_ends_the_load(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "statuses", [202, 0])
    answers = pacing.send(port, [REQUEST] * 5, rate=100, connections=1)
    assert answers.fault == "the server closed a connection"
    assert sum(map(bool, answers.answered_ns)) == 1
