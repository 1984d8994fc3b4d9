"""An event loop that reports each callback of the relay that takes more than 25 ms of its thread.

All tests run on one, and so do the relays that tests start as processes: `python -m
tests.loop_watch ARGUMENTS` is `relay ARGUMENTS` on such a loop.
"""

import asyncio
import gc
import inspect
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import clock_gettime, perf_counter, pthread_getcpuclockid, thread_time
from types import CodeType, FrameType
from typing import Any, NamedTuple

import uvloop

_ADDITIONS = 50_000
_ADDING_S = 0.0022
"""Thread time of these additions on a machine for which the limit is 25 ms."""


def _slowness() -> float:
    """Return how many times slower than that the machine is now, 1 if it is not."""
    begun_s, total = thread_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return max(1.0, (thread_time() - begun_s) / _ADDING_S)


LIMIT_S = 0.025 * _slowness()
"""Of thread time: what other processes and threads do meanwhile does not count."""

EXCEPTIONS: Mapping[str, str] = {
    "Service.open": "the start",
    "Service.__init__": "the start",
    "Service._start": "the start",
    "_server_info": (
        "the first command of a connection: redis-py loads the CAs for each with TLS, and takes no "
        "context that has them"
    ),
    "LoopConnection.write": (
        "a commit of many large bodies goes to libpq in one piece, and on the event loop, "
        "because each statement on a thread waits for Python's lock"
    ),
    "session_page": "the sandbox: a page of a thousand sessions, which no customer waits for",
    "Schedule._fire_next": "the sandbox at a test's speed: hours of viewers are one step",
    "_ObservedTransport.write": (
        "a request is encrypted in one piece, 4 MiB in 25 ms, because between two pieces an early "
        "response would be lost"
    ),
}
"""Functions of the relay, and all that they call, by the reason why they may take longer."""

IS_SAFE = sys.version_info >= (3, 11, 5)
"""Python 3.11.2 dies of it now and then when one thread reads the frames of another."""

REPORT = "RELAY_LOOP_REPORT"
"""The variable with the file to which every process of a test adds what has exceeded the limit."""
_SAMPLE_EVERY_S = 0.01
_IMPORTING = "<frozen importlib._bootstrap>"
_TESTS = str(Path(__file__).parent) + os.sep
_RELAY = str(Path(__file__).parents[1] / "relay") + os.sep


class _Sample(NamedTuple):
    """What ran in the middle of a callback."""

    at_s: float
    """Time of the loop's thread."""
    own: tuple[CodeType, ...]
    """The relay's functions, innermost first."""
    within: FrameType | None
    """In a test's own step, the coroutine of the relay that it awaits; else None."""
    is_importing: bool


class Watch:
    """Measures the callbacks of one loop, and samples the stack of those that take long."""

    current: "Watch | None" = None
    """That of the process: one loop runs at a time."""

    def __init__(self) -> None:
        self.number = 0
        """Of the callback that runs; 0 between two."""
        self._thread = 0
        self._collected_s = 0.0
        self._numbers = 0
        self._sampled = 0
        """The callback that the samples are of."""
        self._samples: list[_Sample] = []
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._sample, daemon=True, name="loop watch").start()

    @classmethod
    def get(cls) -> "Watch":
        if cls.current is None:
            cls.current = cls()
        return cls.current

    def run(self, callback: Callable[..., object], *arguments: object) -> object:
        self._numbers += 1
        self._thread = threading.get_ident()
        before = self.number
        self.number = number = self._numbers
        begun_s, collected_s, thread_s = perf_counter(), self._collected_s, thread_time()
        try:
            return callback(*arguments)
        finally:
            self.number = before
            # Asked first, because it costs a tenth.
            if perf_counter() - begun_s > LIMIT_S:
                taken_s = thread_time() - thread_s - (self._collected_s - collected_s)
                if taken_s > LIMIT_S:
                    self._exceeded(self.samples(number), taken_s, callback)

    def samples(self, number: int) -> list[_Sample]:
        """Return those of a callback; there may be none on a busy machine."""
        return [*self._samples] if self._sampled == number else []

    def _exceeded(
        self, samples: Sequence[_Sample], taken_s: float, callback: Callable[..., object]
    ) -> None:
        excess = _excess(samples, taken_s, callback)
        if excess is not None and REPORT in os.environ:
            with Path(os.environ[REPORT]).open("a", encoding="utf-8") as report:
                report.write(f"{excess}\n")

    def _sample(self) -> None:
        seen, wait = 0, threading.Event()
        while True:
            wait.wait(_SAMPLE_EVERY_S)
            number = self.number
            if number != self._sampled:
                self._sampled, self._samples = number, []
            if number and number == seen:
                sample = _sample(sys._current_frames().get(self._thread), self._thread)
                if self.number == number:
                    self._samples.append(sample)
            seen = number

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        """Leave out what the garbage of the whole suite takes."""
        if info["generation"] == 2 and threading.get_ident() == self._thread:
            self._collected_s += thread_time() * (1 if phase == "stop" else -1)


def _sample(frame: FrameType | None, thread: int) -> _Sample:
    at_s = clock_gettime(pthread_getcpuclockid(thread))
    own: list[CodeType] = []
    outermost, is_importing = None, False
    while frame is not None and frame.f_code is not Watch.run.__code__:
        code = frame.f_code
        is_importing = is_importing or code.co_filename == _IMPORTING
        if code.co_filename.startswith(_RELAY):
            own.append(code)
            outermost = frame if code.co_flags & inspect.CO_COROUTINE else outermost
        elif code.co_filename.startswith(_TESTS) and code.co_filename != __file__:
            # What a test calls as a function need not run on the event loop.
            return _Sample(at_s, tuple(own) if outermost else (), outermost, is_importing)
        frame = frame.f_back
    return _Sample(at_s, tuple(own), None, is_importing)


def _excess(
    samples: Sequence[_Sample], taken_s: float, callback: Callable[..., object]
) -> str | None:
    """Say which of the relay's code has taken the time; None if it was not the relay's, or may."""
    code = _code(callback)
    if not samples and code is not None and code.co_filename.startswith(_RELAY):
        samples = [_Sample(0, (code,), None, is_importing=False)]
    if any(sample.is_importing for sample in samples):
        return None
    by_coroutine: dict[FrameType | None, list[_Sample]] = defaultdict(list)
    for sample in samples:
        if sample.own:
            by_coroutine[sample.within].append(sample)
    for coroutine, its in by_coroutine.items():
        # A test may await many without a pause, and each has the limit for itself.
        its_s = taken_s if coroutine is None else its[-1].at_s - its[0].at_s
        if its_s > LIMIT_S and EXCEPTIONS.keys().isdisjoint(
            code.co_qualname for sample in its for code in sample.own
        ):
            places = dict.fromkeys(" < ".join(map(_name, sample.own[:4])) for sample in its)
            return f"{its_s * 1000:.0f} ms: {'; '.join(places)}"
    return None


def _code(callback: Any) -> CodeType | None:
    """Return the code of a function, or of the coroutine of a task whose step it is."""
    while isinstance(callback, partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return getattr(owner.get_coro(), "cr_code", None)
    return getattr(callback, "__code__", None)


def _name(code: CodeType) -> str:
    file = code.co_filename.removeprefix(_RELAY)
    return f"{file}:{code.co_firstlineno} {code.co_qualname}"


class PlainLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, watched."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        _watch(self)


class UvLoop(uvloop.Loop):
    """The loop on which the relay runs, watched."""

    def __init__(self) -> None:
        super().__init__()
        _watch(self)


def _watch(loop: asyncio.AbstractEventLoop) -> None:
    """Put the measure around all that the loop will call, by its public methods."""
    if not IS_SAFE:
        return
    run = Watch.get().run

    def call(method: Any, at: Any, callback: Any, *arguments: Any, **context: Any) -> Any:
        # In asyncio `call_later` calls `call_at`.
        watched = (callback,) if callback is run else (run, callback)
        return method(at, *watched, *arguments, **context)

    for name in ("call_soon", "call_soon_threadsafe"):
        # No function of Python's in between: a task calls one at each step.
        setattr(loop, name, partial(getattr(loop, name), run))
    for name in ("call_later", "call_at", "add_reader", "add_writer"):
        setattr(loop, name, partial(call, getattr(loop, name)))


def watch_uvloop() -> None:
    """Have `uvloop.run` take a loop that measures."""
    uvloop.run = partial(uvloop.run, loop_factory=UvLoop)


if __name__ == "__main__":
    watch_uvloop()
    from relay.__main__ import main

    main()
