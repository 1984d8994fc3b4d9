"""The limit that all tests keep: what it finds, and what it leaves alone."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import thread_time
from types import FunctionType
from typing import Any

import pytest

from tests import loop_limit, loop_watch
from tests.loop_watch import LIMIT_S, PlainLoop, UvLoop, Watch

pytestmark = pytest.mark.skipif(
    not loop_watch.IS_SAFE, reason="declared: this Python does not allow the measure"
)

OF_RELAY = Path(__file__).parents[2] / "relay" / "imagined.py"
SOURCE = """
def work(): busy()
async def step(): busy()
async def rest(): pause()
async def little(): busy_for_a_while()
class Service:
    async def open(): busy()
"""


def busy() -> None:
    """Work beyond the limit, as the thread that samples has seen it."""
    until_s, watch = thread_time() + 2 * LIMIT_S, Watch.get()
    while thread_time() < until_s:
        samples = watch.samples(watch.number)
        if not samples or samples[-1].at_s - samples[0].at_s < LIMIT_S:
            until_s = thread_time() + LIMIT_S / 10


def busy_for_a_while() -> None:
    until_s = thread_time() + LIMIT_S / 4
    while thread_time() < until_s:
        pass


def pause() -> None:
    time.sleep(2 * LIMIT_S)


@pytest.fixture
def relays() -> dict[str, Any]:
    """Functions as if they were the relay's own."""
    names: dict[str, Any] = {"busy": busy, "pause": pause}
    names["busy_for_a_while"] = busy_for_a_while
    # So that the innermost frame is the relay's, too.
    for name in ("busy", "pause"):
        code = names[name].__code__.replace(co_filename=str(OF_RELAY))
        names[name] = FunctionType(code, globals(), name)
    exec(compile(SOURCE, str(OF_RELAY), "exec"), names)  # noqa: S102  as an import would
    return names


@pytest.fixture(params=[PlainLoop, UvLoop], ids=["plain", "uvloop"])
def excesses(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Coroutine[Any, Any, None]]], list[str]]:
    """Runs a coroutine, and returns what has exceeded the limit."""
    report = tmp_path / "report"
    monkeypatch.setenv(loop_watch.REPORT, str(report))

    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(main())
        return report.read_text("utf-8").splitlines() if report.exists() else []

    return run


Excesses = Callable[[Callable[[], Coroutine[Any, Any, None]]], list[str]]


def test_a_step_of_a_task_of_the_relay_is_found(relays: dict[str, Any], excesses: Excesses) -> None:
    async def main() -> None:
        await asyncio.create_task(relays["step"]())

    (line,) = excesses(main)
    assert "imagined.py:3 step" in line


def test_its_step_within_a_task_of_a_test_is_found(
    relays: dict[str, Any], excesses: Excesses
) -> None:
    async def main() -> None:
        await relays["step"]()

    (line,) = excesses(main)
    assert "imagined.py:3 step" in line


@pytest.mark.parametrize("way", ["soon", "later", "at", "threadsafe"])
def test_a_callback_of_the_relay_is_found(
    relays: dict[str, Any], excesses: Excesses, way: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        match way:
            case "soon":
                loop.call_soon(relays["work"])
            case "later":
                loop.call_later(0.001, relays["work"])
            case "at":
                loop.call_at(loop.time() + 0.001, relays["work"])
            case "threadsafe":
                await asyncio.to_thread(loop.call_soon_threadsafe, relays["work"])
        await asyncio.sleep(0.01)

    (line,) = excesses(main)
    assert "imagined.py:2 work" in line


def test_waiting_for_other_threads_and_processes_is_not_counted(
    relays: dict[str, Any], excesses: Excesses
) -> None:
    async def main() -> None:
        await asyncio.create_task(relays["rest"]())

    assert excesses(main) == []


def test_work_of_a_test_and_what_it_calls_as_a_function_are_left_alone(
    relays: dict[str, Any], excesses: Excesses
) -> None:
    async def main() -> None:
        busy()
        await asyncio.sleep(0)
        relays["work"]()

    assert excesses(main) == []


def test_each_of_many_coroutines_within_a_step_has_the_limit_for_itself(
    relays: dict[str, Any], excesses: Excesses
) -> None:
    async def main() -> None:
        for _ in range(20):
            await relays["little"]()

    assert excesses(main) == []


def test_the_start_is_left_alone(relays: dict[str, Any], excesses: Excesses) -> None:
    async def main() -> None:
        await asyncio.create_task(relays["Service"].open())

    assert excesses(main) == []


@pytest.mark.parametrize(
    ("again", "fails"),
    [([], False), ([{"a": "30 ms"}], False), ([{"a": "30 ms"}, {"a": "31 ms"}], True)],
)
def test_the_run_fails_for_a_test_that_exceeds_the_limit_by_itself_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: list[dict[str, str]], fails: bool
) -> None:
    monkeypatch.setattr(os, "environ", {})
    plugin = loop_limit.Plugin(tmp_path)
    plugin._suspects = {"a": "29 ms"}
    found = iter([*again, {}, {}])
    monkeypatch.setattr(plugin, "_run_alone", lambda _: next(found))

    class Session:
        exitstatus = pytest.ExitCode.OK

        class config:  # noqa: N801
            rootpath = tmp_path

    session: Any = Session()
    plugin.pytest_sessionfinish(session)
    assert (session.exitstatus == pytest.ExitCode.TESTS_FAILED) == fails
