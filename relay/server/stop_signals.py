"""The signals that end a process which serves, taken from its first moment to its last.

Without a handler, the kernel drops SIGTERM for the first process of a container, and the imports
take most of a start. At the end, a signal would cut off the last log lines and the exit code.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from relay.core.clock import Clock

if TYPE_CHECKING:
    # At run time it would delay the first handler.
    from asyncio import AbstractEventLoop

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_TAKEN = (*_STOPPING, signal.SIGHUP)

REPEAT_S = 1.0
"""Signals closer together count as one: a terminal and a supervisor may both send one."""


class _EarlyHandler:
    """Ends the process during its start, with exit code 0: nothing is served yet."""

    def __init__(self) -> None:
        self.received: set[int] = set()
        self.ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        """Whether the process is to outlive its terminal, as under nohup."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_first = self.received.isdisjoint(_STOPPING)
        self.received.add(number)
        # A second one would break off what the first has begun to end.
        if number in _STOPPING and is_first:
            # Where code swallows it, as in a destructor, `following` goes by `received`.
            sys.exit(0)


class StopRequests:
    """Turns stop signals into two requests: the first to stop, a later one to cut the sends off."""

    def __init__(
        self, clock: Clock, *, stop: Callable[[], object], cut_off: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._stop = stop
        self._cut_off = cut_off
        self._first_s: float | None = None

    def add(self) -> None:
        now_s = self._clock.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            self._stop()
        elif now_s - self._first_s >= REPEAT_S:
            self._cut_off()


def take() -> None:
    """Handle the signals until `following`: a stop ends the process, a reload is kept for later."""
    early = _EarlyHandler()
    for number in _TAKEN:
        signal.signal(number, early)


@contextmanager
def following(
    loop: "AbstractEventLoop",
    requests: StopRequests,
    *,
    reread: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Pass the process's signals on for the block, which is all that it does.

    `reread` is called for SIGHUP. Without one, that means that the terminal has gone: a stop.
    After the block, a process that has called `take` ignores them, and ends by itself.
    """
    taken = signal.getsignal(signal.SIGTERM)
    early = taken if isinstance(taken, _EarlyHandler) else None
    handlers: dict[int, Callable[[], object]] = dict.fromkeys(_STOPPING, requests.add)
    if reread is not None:
        handlers[signal.SIGHUP] = reread
    elif early is not None and not early.ignores_hangup:
        handlers[signal.SIGHUP] = requests.add
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    if early is not None:
        for handler in {handlers[number] for number in early.received & handlers.keys()}:
            handler()
    try:
        yield
    finally:
        if early is not None:
            for number in _TAKEN:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
