"""The `stdout` sink beyond what every sink does: its lines, and readers that stall or leave."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from relay.core.errors import Misconfigured
from relay.core.event import Event
from relay.sinks.stdout.sink import StdoutSink
from tests.sinks.harnesses import fill
from tests.stub_server import DEADLINE_S, until

LARGE = b'{"id":"evt_large","text":"' + b"x" * 300_000 + b'"}'


class Pipe:
    """Both ends of a pipe, read only when a test says so."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.received = bytearray()

    def drain(self) -> None:
        """Take what is there, in a thread, until the writer's end is closed."""
        while chunk := os.read(self.read, 65536):
            self.received += chunk

    @property
    def lines(self) -> list[bytes]:
        """Give the whole lines, without those that filled the pipe."""
        return [line for line in bytes(self.received).split(b"\n")[:-1] if line]

    def close(self) -> None:
        for end in (self.read, self.write):
            with suppress(OSError):
                os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
async def sink(pipe: Pipe) -> AsyncIterator[StdoutSink]:
    sink = StdoutSink(pipe.write)
    yield sink
    await sink.close()
    # A write that hangs ends with its reader.
    with suppress(OSError):
        os.close(pipe.read)
    await until(lambda: not writers(), what="the end of the writing thread")


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stdout"]


async def test_an_event_is_one_json_line(pipe: Pipe, sink: StdoutSink, lead: Event) -> None:
    await sink.send(lead)
    line = os.read(pipe.read, 65536)
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "source": "main",
        "id": "evt_lead",
        "event": "lead.captured",
        "receivedAt": lead.received_ms,
        "body": lead.document(),
    }


async def test_line_breaks_between_tokens_become_spaces_and_nothing_else_changes(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    body = '{\r\n "n" : 1.50e+1 ,\n"t":"a\\nb \u2026\u200b\xa0 \\u00fc"\r}\n'.encode()
    await sink.send(replace(lead, body=body))
    line = os.read(pipe.read, 65536)
    assert line.count(b"\n") == 1
    expected = ',"body":{   "n" : 1.50e+1 , "t":"a\\nb \u2026\u200b\xa0 \\u00fc" } }\n'
    assert line.endswith(expected.encode())
    assert json.loads(line)["body"] == json.loads(body)


async def test_what_a_terminal_obeys_is_escaped_in_texts(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    obeyed = [0x7F, *range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F)]
    text = "".join(map(chr, [*obeyed, *range(0x2066, 0x206A)])) + "\u00e9\U0001f600"
    await sink.send(replace(lead, body=json.dumps({text: text}, ensure_ascii=False).encode()))
    line = os.read(pipe.read, 65536)
    assert [each for each in line.decode()[:-1] if not each.isprintable()] == []
    assert json.loads(line)["body"] == {text: text}
    assert "\u00e9\U0001f600" in line.decode()


async def test_the_rendered_message_is_the_line(pipe: Pipe, sink: StdoutSink, lead: Event) -> None:
    await sink.send(lead)
    assert sink.render(lead) == {"line": os.read(pipe.read, 65536).decode()}


async def test_many_at_once_do_not_mix(pipe: Pipe, sink: StdoutSink, lead: Event) -> None:
    reading = asyncio.create_task(asyncio.to_thread(pipe.drain))
    other = StdoutSink(pipe.write)
    events = [replace(lead, id=f"evt_{number}", body=LARGE) for number in range(12)]
    sinks = (sink, other)
    await asyncio.gather(*(sinks[n % 2].send(event) for n, event in enumerate(events)))
    await other.close()
    os.close(pipe.write)
    await reading
    ids = [json.loads(line)["id"] for line in pipe.lines]
    assert sorted(ids) == sorted(event.id for event in events)


async def test_a_reader_that_stalls_holds_up_nothing_else(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    fill(pipe.write)
    sending = asyncio.create_task(sink.send(lead))
    started = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert time.monotonic() - started < DEADLINE_S
    assert not sending.done()
    sending.cancel()
    await asyncio.wait({sending})


async def test_a_send_cancelled_within_a_line_leaves_no_torn_line(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    sending = asyncio.create_task(sink.send(replace(lead, id="evt_cut", body=LARGE)))
    await until(lambda: waiting(pipe.read) > 0, what="the line's first bytes")
    sending.cancel()
    await asyncio.wait({sending})
    assert sending.cancelled()
    following = asyncio.create_task(sink.send(lead))
    reading = asyncio.create_task(asyncio.to_thread(pipe.drain))
    await following
    os.close(pipe.write)
    await reading
    assert [json.loads(line)["id"] for line in pipe.lines] == ["evt_cut", "evt_lead"]


async def test_sends_that_time_out_do_not_pile_up(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    fill(pipe.write)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await sink.send(lead)
    reading = asyncio.create_task(asyncio.to_thread(pipe.drain))
    await sink.send(replace(lead, id="evt_last"))
    os.close(pipe.write)
    await reading
    assert [json.loads(line)["id"] for line in pipe.lines] == ["evt_lead", "evt_last"]


def test_a_full_disk_is_temporary_and_tears_no_line(tmp_path: Path) -> None:
    # A limit on the file's size stands in for the disk's.
    source = """
import asyncio, resource, signal, sys
from relay.core import sample_events as samples
from relay.core.errors import Temporary
from relay.sinks.stdout.sink import StdoutSink

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    sink = StdoutSink(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        await sink.send(samples.event("lead.captured", event_id="evt_torn"))
    except Temporary as error:
        print(error.reason, file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    await sink.send(samples.event("lead.captured", event_id="evt_next"))
asyncio.run(main())
"""
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        done = subprocess.run(
            (sys.executable, "-c", source), stdout=stdout, stderr=subprocess.PIPE, check=True
        )
    assert done.stderr == b"stdout cannot be written: File too large\n"
    ids = [json.loads(line)["id"] for line in out.read_bytes().splitlines()]
    assert ids == ["evt_torn", "evt_next"]


async def test_a_closed_pipe_parks_the_sink(pipe: Pipe, sink: StdoutSink, lead: Event) -> None:
    await sink.check()
    os.close(pipe.read)
    with pytest.raises(Misconfigured, match="stdout is closed"):
        await sink.send(lead)
    with pytest.raises(Misconfigured, match="stdout is closed"):
        await sink.check()


@pytest.mark.parametrize("descriptor", [None, 9_999])
async def test_a_process_without_stdout_parks_the_sink(lead: Event, descriptor: int | None) -> None:
    sink = StdoutSink(descriptor)
    for reach in (sink.check(), sink.send(lead)):
        with pytest.raises(Misconfigured, match="stdout is closed"):
            await reach
    await sink.close()


async def test_a_pipe_that_was_made_non_blocking_is_waited_for(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    os.set_blocking(pipe.write, False)
    sending = asyncio.create_task(sink.send(replace(lead, body=LARGE)))
    await until(lambda: waiting(pipe.read) > 0, what="the line's first bytes")
    reading = asyncio.create_task(asyncio.to_thread(pipe.drain))
    await sending
    os.close(pipe.write)
    await reading
    assert json.loads(pipe.lines[0])["id"] == "evt_lead"


async def test_a_file_description_shared_with_stdout_keeps_its_mode(
    pipe: Pipe, sink: StdoutSink, lead: Event
) -> None:
    await sink.send(lead)
    assert os.get_blocking(pipe.write)


async def test_a_file_takes_events_too(lead: Event, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        sink = StdoutSink(file.fileno())
        await sink.check()
        await sink.send(lead)
        await sink.close()
    assert json.loads((tmp_path / "out").read_bytes())["id"] == "evt_lead"


@pytest.mark.servers
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_process_ends_though_its_reader_never_reads(loop: str) -> None:
    source = f"""
import asyncio, {loop}, sys
from relay.core import sample_events as samples
from relay.sinks.stdout.sink import StdoutSink
async def main():
    sink = StdoutSink(1)
    for _ in range(1000):
        try:
            async with asyncio.timeout(0.1):
                await sink.send(samples.event("lead.captured"))
        except TimeoutError:
            break
    await sink.close()
    print("stalled", file=sys.stderr, flush=True)
{loop}.run(main())
"""
    with subprocess.Popen(
        (sys.executable, "-c", source), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.wait(timeout=2 * DEADLINE_S) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b"stalled\n"
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


def waiting(descriptor: int) -> int:
    """Count the bytes that can be read."""
    size = bytearray(4)
    fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)
