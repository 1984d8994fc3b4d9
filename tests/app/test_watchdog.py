"""Proofs of life for a service manager: none from a store that is stuck, one from any other."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
import tty
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from relay.app.watchdog import Watchdog
from relay.core.errors import StoreBroken, StoreUnavailable
from tests.namespaces import FIRST_PROCESS, needs_namespaces
from tests.virtual_time import LoopClock, VirtualLoop


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


class Store:
    """A store that responds at once, after some seconds, or with an error."""

    def __init__(self, *answers: float | Exception) -> None:
        self._answers = deque(answers)

    async def respond(self) -> None:
        answer = self._answers.popleft() if self._answers else 0.0
        if isinstance(answer, Exception):
            raise answer
        await asyncio.sleep(answer)


async def no_problems() -> list[str]:
    return []


class Manager:
    watchdog_s = 10.0

    def __init__(self) -> None:
        self.pings: list[float] = []

    def alive(self) -> None:
        self.pings.append(asyncio.get_running_loop().time())


async def pings(store: Store, *, until_s: float) -> list[float]:
    manager = Manager()
    supervision = Watchdog(
        cast("Any", manager),
        store=cast("Any", store),
        statuses=dict,
        problems=no_problems,
        clock=LoopClock(),
    )
    begun_s = asyncio.get_running_loop().time()
    tell, prove = supervision.tasks()
    tell.close()
    try:
        async with asyncio.timeout(until_s):
            await prove
    except TimeoutError:
        pass
    return [at_s - begun_s for at_s in manager.pings]


async def test_proofs_of_life_come_twice_per_watchdog_interval() -> None:
    assert await pings(Store(), until_s=12) == [0, 5, 10]


async def test_a_stuck_store_gives_no_proof_of_life() -> None:
    assert await pings(Store(0, 60), until_s=50) == [0]


async def test_a_store_that_refuses_writes_is_alive() -> None:
    assert await pings(Store(0, StoreUnavailable("locked")), until_s=12) == [
        0,
        5,
        10,
    ]


async def test_a_broken_store_ends_the_run() -> None:
    with pytest.raises(StoreBroken):
        await pings(Store(StoreBroken("the store is damaged")), until_s=12)


_HANGS = """
import asyncio, sys, time
from relay.server.sd_notify import ServiceManager
from relay.app import watchdog
from relay.app.watchdog import HangTimer, Watchdog
from tests.app.test_watchdog import Store, no_problems

async def main():
    watchdog.DUMP_LIMIT_S = 1
    {setup}
    manager = ServiceManager(None, clock=None)
    parts = dict(statuses=dict, problems=no_problems, clock=None, hang_timer=HangTimer(0.5))
    (chore,) = Watchdog(manager, store=store, **parts).tasks()
    proving = asyncio.create_task(chore)
    await asyncio.sleep(1.5)
    print("alive", flush=True)
    {then}
    print("over", flush=True)

asyncio.run(main())
"""


@pytest.mark.servers
@pytest.mark.parametrize(
    ("setup", "then", "code", "said"),
    [
        ("store = Store()", "time.sleep(60)", 1, "alive\n"),
        ("store = Store(0, 0, 60)", "await asyncio.sleep(60)", 1, ""),
        (
            "store = Store()",
            "parts['hang_timer'].limit_s = 60; proving.cancel()",
            0,
            "alive\nover\n",
        ),
        ("store = Store()", "proving.cancel(); await asyncio.sleep(60)", 1, "alive\n"),
    ],
    ids=["a loop that stands", "a writer that is stuck", "a stop", "a stop that hangs"],
)
def test_a_hanging_process_ends_itself_and_a_working_one_does_not(
    setup: str, then: str, code: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HANGS.format(setup=setup, then=then)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, said)
    assert ("Timeout" in done.stderr) == (code == 1)


@contextmanager
def unread(kind: str, folder: Path) -> Iterator[int]:
    """Open a stream that takes nothing more, because nobody reads it."""
    if kind == "pipe":
        other, end = os.pipe()
    elif kind == "terminal":
        other, end = pty.openpty()
        tty.setraw(end)
    elif kind == "socket":
        other, end = (each.detach() for each in socket.socketpair())
    else:
        other, end = (
            os.open("/dev/null", os.O_RDONLY),
            os.open(folder / "log", os.O_CREAT | os.O_WRONLY),
        )
    if kind != "file":
        os.set_blocking(end, False)
        with suppress(BlockingIOError):
            while True:
                os.write(end, b"x" * 100)
        os.set_blocking(end, True)
    try:
        yield end
    finally:
        os.close(end)
        os.close(other)


_STANDS = [sys.executable, "-c", _HANGS.format(setup="store = Store()", then="time.sleep(60)")]


@pytest.mark.servers
@pytest.mark.parametrize(
    ("kind", "code"),
    [("pipe", 1), ("terminal", 1), ("file", 1), ("socket", -signal.SIGALRM)],
)
def test_a_reader_of_stderr_that_hangs_does_not_keep_a_hanging_process_alive(
    tmp_path: Path, kind: str, code: int
) -> None:
    with unread(kind, tmp_path) as stderr:
        done = subprocess.run(
            _STANDS, stdout=subprocess.PIPE, stderr=stderr, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (code, b"alive\n")
    if kind == "file":
        assert "Timeout" in (tmp_path / "log").read_text()


@pytest.mark.servers
@needs_namespaces
@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_nor_does_it_keep_the_first_process_of_a_container(tmp_path: Path, kind: str) -> None:
    with unread(kind, tmp_path) as stderr:
        done = subprocess.run(
            [*FIRST_PROCESS, *_STANDS],
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, b"alive\n")


@pytest.mark.servers
def test_the_alarm_reaches_no_child() -> None:
    program = """
import signal, subprocess, sys
from relay.app import watchdog
watchdog.DUMP_LIMIT_S = 0.1
timer = watchdog.HangTimer(0.4)
timer.reset()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1.5)"])
timer.limit_s = 60
timer.reset()
sys.exit(child.wait())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
