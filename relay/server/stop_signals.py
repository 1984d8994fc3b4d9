"""The signals that end a process which serves, taken from its first moment on.

Without a handler, the kernel drops SIGTERM for the first process of a container, and the imports
take most of a start.
"""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from relay.core.clock import Clock

if TYPE_CHECKING:
    # At run time it would delay the first handler.
    from asyncio import AbstractEventLoop

_STOPPING = (signal.SIGTERM, signal.SIGINT)

REPEAT_S = 1.0
"""Signals closer together count as one: a terminal and a supervisor may both send one."""


class _EarlyHandler:
    """Ends the process during its start, with exit code 0: nothing is served yet."""

    def __init__(self) -> None:
        self.received: set[int] = set()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.add(number)
        if number in _STOPPING:
            # Where code swallows it, as in a destructor, `follow` goes by `received`.
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
    """Handle the signals until `follow`: a stop ends the process, a reload is kept for later."""
    early = _EarlyHandler()
    for number in (*_STOPPING, signal.SIGHUP):
        signal.signal(number, early)


def follow(
    loop: "AbstractEventLoop",
    requests: StopRequests,
    *,
    reread: Callable[[], object] | None = None,
) -> None:
    """Pass the process's signals on from now on; `reread` is called for SIGHUP."""
    early = signal.getsignal(signal.SIGTERM)
    for number in _STOPPING:
        loop.add_signal_handler(number, requests.add)
    if reread is not None:
        loop.add_signal_handler(signal.SIGHUP, reread)
    if isinstance(early, _EarlyHandler):
        if not early.received.isdisjoint(_STOPPING):
            requests.add()
        if reread is not None and signal.SIGHUP in early.received:
            reread()
