"""A log that nobody reads: the relay goes on, stops at SIGTERM, and reports dropped lines."""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from tests import service
from tests.guarantees.destinations import Destination
from tests.guarantees.process import Relay, until
from tests.guarantees.traffic import lead, post

pytestmark = pytest.mark.servers

EVENTS = 200

SINK = service.SINK.format(name="crm", url="{url}", more="")

_PROGRAM = """
import sys
from relay.telemetry import line_buffer
line_buffer.BYTES_MAX = 8192
from relay.__main__ import main
main()
"""


@asynccontextmanager
async def _unread(folder: Path) -> AsyncIterator[tuple[Relay, int]]:
    """Run a relay whose stderr is a pipe of 4 KiB; yields it with the pipe's other end."""
    pipe, program = folder / "stderr", folder / "program.py"
    os.mkfifo(pipe)
    program.write_text(_PROGRAM, encoding="utf-8")
    read_fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, 4096)
    # Without the arguments `-m relay`, in whose place the program stands.
    prefix = ["sh", "-c", f'shift 2; exec "$0" {program} "$@" 2>{pipe}']
    try:
        async with (
            Destination("crm") as destination,
            Relay(folder, sinks=SINK.format(url=destination.url), prefix=prefix) as relay,
        ):
            await relay.start()
            for number in range(EVENTS):
                answer = await post(relay.url, lead(f"evt_{number}"))
                assert answer.status_code == httpx.codes.ACCEPTED
            await until(lambda: destination.taken.total() == EVENTS, what="the deliveries")
            yield relay, read_fd
    finally:
        os.close(read_fd)


async def test_it_acknowledges_answers_and_stops(tmp_path: Path) -> None:
    async with _unread(tmp_path) as (relay, _):
        answer = await relay.ask("/healthz")
        assert answer is not None
        assert answer.status_code == httpx.codes.OK
        relay.signal(signal.SIGTERM)
        assert await relay.exit(deadline_s=30) == 0


async def test_what_was_dropped_is_counted_and_said_once_the_log_is_read_again(
    tmp_path: Path,
) -> None:
    async with _unread(tmp_path) as (relay, read_fd):

        async def is_counted() -> bool:
            return await relay.metric("relay_log_lines_dropped_total") > 0

        await until(is_counted, what="the count of the lines that were dropped")
        relay.signal(signal.SIGTERM)
        text = await _read(read_fd, until=b"relay.stopped")
        assert await relay.exit() == 0
    lines = [orjson.loads(line) for line in text.splitlines()]
    (report,) = [line for line in lines if line["event"] == "log.dropped"]
    delivered = [line["id"] for line in lines if line["event"] == "delivery.delivered"]
    assert report["count"] >= EVENTS - len(delivered)
    # Its last lines say how it ended.
    assert [line["event"] for line in lines][-1] == "relay.stopped"


async def _read(read_fd: int, *, until: bytes) -> bytes:
    text = b""
    async with asyncio.timeout(30):
        while until not in text:
            try:
                text += os.read(read_fd, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.01)
    return text + await _rest(read_fd)


async def _rest(read_fd: int) -> bytes:
    """Read up to the end of the pipe."""
    text = b""
    async with asyncio.timeout(30):
        while True:
            try:
                if not (more := os.read(read_fd, 65536)):
                    return text
                text += more
            except BlockingIOError:
                await asyncio.sleep(0.01)
