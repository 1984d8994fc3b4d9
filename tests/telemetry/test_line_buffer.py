"""A stream whose reader may hang: no write waits for it, and dropped lines are counted."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import pytest

from relay.telemetry import line_buffer
from relay.telemetry.line_buffer import LineBuffer, buffered, find
from tests.caller import PATIENCE_S

LINE = b"%98d\n"


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    """A pipe of 4 KiB."""
    read_fd, write_fd = os.pipe()
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(read_fd, "rb", buffering=0) as read_end:
        yield read_end, write_fd
        # A thread that writes may be left; without a reader it ends with the test.
    os.close(write_fd)


def read(read_end: BinaryIO, *, until: bytes) -> bytes:
    text = b""
    while until not in text:
        text += read_end.read(65536)
    return text


def fill(buffer: LineBuffer, count: int) -> None:
    for number in range(count):
        assert buffer.write(LINE % number) == len(LINE % number)


def wait_until_dropped(buffer: LineBuffer, count: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while buffer.dropped < count:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_slow_reader_gets_every_line_in_order(pipe: tuple[BinaryIO, int]) -> None:
    read_end, write_fd = pipe
    buffer = LineBuffer(write_fd)
    fill(buffer, 1000)
    lines = read(read_end, until=LINE % 999).splitlines(keepends=True)
    assert lines == [LINE % number for number in range(1000)]
    assert buffer.dropped == 0


def test_what_does_not_fit_is_dropped_in_one_place_and_reported_there(
    pipe: tuple[BinaryIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_fd = pipe
    monkeypatch.setattr(line_buffer, "BYTES_MAX", 100 * len(LINE % 0))
    buffer = LineBuffer(write_fd)
    buffer.report = lambda count: buffer.write(b"dropped %d\n" % count)
    fill(buffer, 1000)
    dropped = buffer.dropped
    assert 800 < dropped < 1000
    text = read(read_end, until=b"dropped")
    buffer.write(b"afterwards\n")
    lines = (text + read(read_end, until=b"afterwards\n")).splitlines()
    kept = 1000 - dropped
    assert [int(line) for line in lines[:kept]] == list(range(kept))
    assert lines[kept:] == [b"dropped %d" % dropped, b"afterwards"]


def test_the_number_of_lines_is_bounded_too(
    pipe: tuple[BinaryIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, write_fd = pipe
    monkeypatch.setattr(line_buffer, "LINES_MAX", 100)
    buffer = LineBuffer(write_fd)
    fill(buffer, 1000)
    assert buffer.dropped > 800


def test_a_reader_that_has_gone_is_an_error_of_the_next_line(pipe: tuple[BinaryIO, int]) -> None:
    read_end, write_fd = pipe
    buffer = LineBuffer(write_fd)
    read_end.close()
    buffer.write(b"first\n")
    wait_until_dropped(buffer, 1)
    with pytest.raises(BrokenPipeError):
        buffer.write(b"second\n")


def test_a_failed_write_is_reported_once_the_next_one_works(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    descriptor = os.open(file, os.O_RDONLY)
    buffer = LineBuffer(descriptor)
    buffer.report = lambda count: buffer.write(b"dropped %d\n" % count)
    buffer.write(b"first\nof two\n")
    wait_until_dropped(buffer, 2)
    with file.open("ab") as writable:
        os.dup2(writable.fileno(), descriptor)
    with suppress(OSError):
        buffer.write(b"second\n")
    until_s = time.monotonic() + PATIENCE_S
    while b"dropped" not in file.read_bytes():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    assert file.read_bytes() == b"second\ndropped 2\n"
    os.close(descriptor)


def test_a_pipe_that_somebody_made_non_blocking_loses_nothing(pipe: tuple[BinaryIO, int]) -> None:
    read_end, write_fd = pipe
    os.set_blocking(write_fd, False)
    buffer = LineBuffer(write_fd)
    fill(buffer, 500)
    assert read(read_end, until=LINE % 499).count(b"\n") == 500


def test_a_drain_waits_for_a_reader_that_reads_and_not_for_another(
    pipe: tuple[BinaryIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_fd = pipe
    monkeypatch.setattr(line_buffer, "STALL_S", 0.1)
    buffer = LineBuffer(write_fd)
    fill(buffer, 500)
    buffer.drain()
    text = read(read_end, until=LINE % 499)
    assert text.count(b"\n") == 500
    buffer.write(b"last\n")
    buffer.drain()
    assert read_end.read(100) == b"last\n"


def test_a_line_that_never_fits_is_dropped_alone(
    pipe: tuple[BinaryIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_fd = pipe
    monkeypatch.setattr(line_buffer, "BYTES_MAX", 1000)
    buffer = LineBuffer(write_fd)
    buffer.report = lambda count: buffer.write(b"dropped %d\n" % count)
    buffer.write(b"x" * 1001 + b"\n")
    buffer.write(b"after it\n")
    assert buffer.dropped == 1
    assert read(read_end, until=b"dropped 1\n") == b"after it\ndropped 1\n"


def test_a_drain_goes_on_while_as_many_lines_come_as_are_written(
    pipe: tuple[BinaryIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_buffer, "STALL_S", 0.2)

    class Slow(LineBuffer):
        """Takes a batch's time, and gets a line for each that it has written."""

        def _write_out(self, line: bytes) -> OSError | None:
            error = super()._write_out(line)
            written.append(line)
            time.sleep(0.15)
            if line.startswith(b"line"):
                self.write(b"more" + b" " * 3995 + b"\n")
            return error

    written: list[bytes] = []
    read_end, write_fd = pipe
    reading = Thread(target=read, args=(read_end,), kwargs={"until": b"last"}, daemon=True)
    reading.start()
    buffer = Slow(write_fd)
    for _ in range(5):
        buffer.write(b"line" + b" " * 3995 + b"\n")
    buffer.write(b"last\n")
    buffer.drain()
    assert any(b"last" in line for line in written)
    reading.join(PATIENCE_S)


@pytest.mark.servers
def test_what_has_no_end_of_line_is_written_at_the_exit() -> None:
    program = (
        "import sys; from relay.telemetry.line_buffer import buffered; "
        "sys.stderr = buffered(sys.stderr); sys.stderr.write('no end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b"no end"


def test_a_stream_writes_whole_lines_as_it_did(pipe: tuple[BinaryIO, int]) -> None:
    read_end, write_fd = pipe
    with os.fdopen(os.dup(write_fd), "w", encoding="utf-8") as stream:
        text = buffered(stream)
        assert find(stream) is None
        assert find(text) is not None
        assert (text.encoding, text.errors, text.isatty()) == ("utf-8", "strict", False)
        assert text.fileno() == stream.fileno()
        print("a line", "ünïcode", file=text)
        assert read_end.read(100).decode() == "a line ünïcode\n"
