"""Which stop signals count, and what a signal before the event loop does."""

import signal
import subprocess
import sys

import pytest

from relay.server.stop_signals import StopRequests
from tests.conftest import ManualClock


def requests_at(*seconds: float) -> list[str]:
    clock, asked = ManualClock(), list[str]()
    began_ms = clock.ms
    requests = StopRequests(
        clock, stop=lambda: asked.append("stop"), cut_off=lambda: asked.append("cut off")
    )
    for each in seconds:
        clock.ms = began_ms + round(each * 1000)
        requests.add()
    return asked


@pytest.mark.parametrize(
    ("seconds", "asked"),
    [
        ((0,), ["stop"]),
        ((0, 0.1, 0.9), ["stop"]),
        ((0, 1), ["stop", "cut off"]),
        ((0, 0.5, 1.2), ["stop", "cut off"]),
        ((0, 60), ["stop", "cut off"]),
    ],
)
def test_a_signal_cuts_off_if_it_comes_a_second_after_the_first(
    seconds: tuple[float, ...], asked: list[str]
) -> None:
    assert requests_at(*seconds) == asked


PROGRAM = """
import asyncio, os, signal
from relay.core.clock import SystemClock
from relay.server import stop_signals

class Swallowed:
    def __del__(self):
        os.kill(os.getpid(), signal.{number})

stop_signals.take()
{early}

async def main():
    stop, reread = asyncio.Event(), asyncio.Event()
    requests = stop_signals.StopRequests(SystemClock(), stop=stop.set, cut_off=stop.set)
    stop_signals.follow(asyncio.get_running_loop(), requests, reread=reread.set)
    {late}
    await asyncio.wait_for({event}.wait(), 20)
    print("asked", flush=True)

asyncio.run(main())
"""
KILL = "os.kill(os.getpid(), signal.{number})"


@pytest.mark.servers
@pytest.mark.parametrize(
    ("number", "early", "late", "event", "said"),
    [
        ("SIGTERM", KILL, "pass", "stop", ""),
        ("SIGINT", KILL, "pass", "stop", ""),
        ("SIGTERM", "Swallowed()", "pass", "stop", "asked\n"),
        ("SIGHUP", KILL, "pass", "reread", "asked\n"),
        ("SIGTERM", "pass", KILL, "stop", "asked\n"),
        ("SIGHUP", "pass", KILL, "reread", "asked\n"),
    ],
)
def test_a_signal_before_the_loop_ends_the_process_and_none_is_lost(
    number: str, early: str, late: str, event: str, said: str
) -> None:
    parts = {"early": early.format(number=number), "late": late.format(number=number)}
    program = PROGRAM.format(number=number, event=event, **parts)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, said)


@pytest.mark.servers
def test_a_command_that_does_not_serve_ends_by_its_signal() -> None:
    command = [sys.executable, "-m", "relay", "verify", "--secret", "a-secret-of-sixteen"]
    command += ["--header", "t=1,v1=00", "--body", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
