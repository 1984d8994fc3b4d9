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

{first}
stop_signals.take()
{early}

async def main():
    stop, reread = asyncio.Event(), asyncio.Event()
    requests = stop_signals.StopRequests(SystemClock(), stop=stop.set, cut_off=stop.set)
    with stop_signals.following(asyncio.get_running_loop(), requests{reread}):
        {late}
        await asyncio.wait_for({event}.wait(), 20)
        print("asked", flush=True)

asyncio.run(main())
{at_the_end}
"""
KILL = "os.kill(os.getpid(), signal.{number})"
IN_A_TERMINAL = "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""Also where the tests themselves run under nohup."""


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
    done = ran(number, early=early, late=late, event=event)
    assert (done.returncode, done.stdout) == (0, said)


def ran(
    number: str,
    *,
    first: str = IN_A_TERMINAL,
    early: str = "pass",
    late: str = "pass",
    event: str = "stop",
    reread: str = ", reread=reread.set",
    at_the_end: str = "",
    prefix: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    parts = {"early": early, "late": late, "at_the_end": at_the_end}
    program = PROGRAM.format(
        number=number,
        first=first,
        event=event,
        reread=reread,
        **{name: part.format(number=number) for name, part in parts.items()},
    )
    return subprocess.run(
        [*prefix, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.servers
@pytest.mark.parametrize("early", [KILL, "pass"])
def test_a_process_that_reads_no_config_again_stops_when_its_terminal_has_gone(early: str) -> None:
    done = ran("SIGHUP", early=early, late="pass" if early == KILL else KILL, reread="")
    assert (done.returncode, done.stdout) == (0, "asked\n")


@pytest.mark.servers
def test_it_outlives_its_terminal_under_nohup() -> None:
    late = "os.kill(os.getpid(), signal.SIGHUP); await asyncio.sleep(0.1); "
    late += "assert not stop.is_set(); stop.set()"
    done = ran("SIGHUP", first="pass", early=KILL, late=late, reread="", prefix=("nohup",))
    assert (done.returncode, done.stdout) == (0, "asked\n")


@pytest.mark.servers
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_no_signal_cuts_off_the_end_of_a_process(number: str) -> None:
    done = ran(number, late="stop.set()", at_the_end=KILL + '; print("at the end")')
    assert (done.returncode, done.stdout) == (0, "asked\nat the end\n")


@pytest.mark.servers
def test_a_second_signal_during_the_start_does_not_break_off_what_the_first_ends() -> None:
    early = "import atexit; atexit.register(print, 'closed'); "
    early += f"atexit.register(lambda: {KILL}); {KILL}"
    done = ran("SIGTERM", early=early)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


@pytest.mark.servers
def test_a_command_that_does_not_serve_ends_by_its_signal() -> None:
    command = [sys.executable, "-m", "relay", "verify", "--secret", "a-secret-of-sixteen"]
    command += ["--header", "t=1,v1=00", "--body", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
