"""Proofs of life, for a service manager and for a timer that ends a hung process.

The store's heartbeat goes through the writer's thread: from anywhere else, a relay whose disk hangs
would look idle.
"""

import asyncio
import faulthandler
import os
import signal
import stat
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from relay.core.clock import Clock
from relay.core.errors import StoreUnavailable
from relay.core.minutes import MINUTE_MS
from relay.core.sink_status import SinkStatus, stands_still
from relay.core.units import number, span
from relay.server.sd_notify import ServiceManager
from relay.store import Backlog, Store

STATUS_EVERY_S = 5.0

HANG_LIMIT_S = 60.0
"""Time without a proof of life after which the process ends itself, as systemd would end it.

A stop has as long from the end of its drain on, whatever it waits for.
"""

DUMP_LIMIT_S = 5.0
"""Time for writing the stacks, after which the kernel ends the process."""

_STDERR = 2


class HangTimer:
    """Ends the process, with every thread's stack on stderr, unless it is reset in time.

    The timer is a thread of the interpreter's own, which needs neither its lock nor its loop.
    A reader of stderr that hangs cannot keep it from ending the process: where possible the stacks
    go to a descriptor that never blocks, and the kernel's alarm ends a process that has not ended.
    """

    def __init__(self, limit_s: float = HANG_LIMIT_S) -> None:
        """Only on the main thread."""
        self.limit_s = limit_s
        self._stderr = _never_blocking(_STDERR)
        # The parent may have ignored or blocked it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    def reset(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self.limit_s + DUMP_LIMIT_S)
        faulthandler.dump_traceback_later(self.limit_s, file=self._stderr, exit=True)


def _never_blocking(descriptor: int) -> int:
    """Return a descriptor of the same file whose writes fail rather than wait, if there is one."""
    mode = os.fstat(descriptor).st_mode
    # Opened anew, it shares no flags with other processes. A file would be written from its start.
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    # A socket, or a pipe of another user. The kernel's alarm does not end the first process of a
    # container, whose streams are its own.
    if os.getpid() == 1:
        os.set_blocking(descriptor, False)
    return descriptor


class Watchdog(msgspec.Struct, eq=False):
    """Sends proofs of life, and reports the relay's status to the service manager."""

    manager: ServiceManager
    store: Store
    statuses: Callable[[], Mapping[str, SinkStatus]]
    problems: Callable[[], Awaitable[Sequence[str]]]
    """Returns why no event can be accepted at present, as /readyz says it."""
    clock: Clock
    hang_timer: HangTimer | None = None
    """Without one, ending a hung process is left to its supervisor."""

    def tasks(self) -> tuple[Coroutine[None, None, None], ...]:
        """Return all tasks' coroutines; each runs until it is cancelled."""
        tasks = []
        if self.hang_timer is not None:
            tasks.append(self._reset_timer(self.hang_timer))
        if self.manager:
            tasks.append(self._report_status())
        if self.manager.watchdog_s is not None:
            tasks.append(self._prove_alive(self.manager.alive, self.manager.watchdog_s / 2))
        return tuple(tasks)

    async def _reset_timer(self, timer: HangTimer) -> None:
        try:
            await self._prove_alive(timer.reset, timer.limit_s / 4)
        finally:
            # For the rest of the stop: a send that ignores its cancellation would hold it for ever.
            timer.reset()

    async def _prove_alive(self, prove: Callable[[], None], every_s: float) -> None:
        """Prove that both the event loop and the store's writer make progress.

        A disk that hangs blocks the writer with the next heartbeat at the latest.
        """
        while True:
            # Then the writer has answered, and the heartbeat reports the cause.
            with suppress(StoreUnavailable):
                await self.store.respond()
            prove()
            await asyncio.sleep(every_s)

    async def _report_status(self) -> None:
        while True:
            problems = await self.problems()
            try:
                backlogs = await self.store.backlogs()
            except StoreUnavailable:
                backlogs = None
            statuses = self.statuses().values()
            line = describe(statuses, backlogs, problems, now_ms=self.clock.now_ms())
            self.manager.status(line)
            await asyncio.sleep(STATUS_EVERY_S)


def describe(
    statuses: Iterable[SinkStatus],
    backlogs: Mapping[str, Backlog] | None,
    problems: Sequence[str],
    *,
    now_ms: int,
) -> str:
    """Summarise the relay's status in one line: failures first, then the backlog if known."""
    statuses = tuple(statuses)
    failing = [
        f"{sink.name} {'stands still' if is_still else sink.state}"
        for sink in statuses
        if (is_still := stands_still(sink.stands_still_since_ms, now_ms=now_ms))
        or sink.state != "active"
    ]
    active = len(statuses) - len(failing)
    sinks = ", ".join([f"{active} of {len(statuses)} sinks active", *failing])
    parts = [f"takes no events: {', '.join(problems)}"] if problems else []
    waiting = None if backlogs is None else _waiting(backlogs.values(), now_ms=now_ms)
    return "; ".join([*parts, sinks, waiting or "backlog unknown: the store cannot be read"])


def _waiting(backlogs: Iterable[Backlog], *, now_ms: int) -> str:
    backlogs = tuple(backlogs)
    pending = sum(each.pending for each in backlogs)
    dead = sum(each.dead for each in backlogs)
    oldest = [each.oldest_ms for each in backlogs if each.oldest_ms is not None]
    text = f"{number(pending)} pending"
    if oldest and (age_ms := now_ms - min(oldest)) >= MINUTE_MS:
        text += f", the oldest for {span(age_ms)}"
    return f"{text}, {number(dead)} dead" if dead else text
