"""Notifications to a service manager: ready, reloading, stopping, alive.

The protocol is sd_notify(3): one datagram of lines to the socket named in the environment.
"""

import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from relay.core.clock import Clock
from relay.telemetry import log

_USEC = 1_000_000


class ServiceManager:
    """The service manager of this process; without one, nothing is sent."""

    def __init__(
        self, address: str | None, *, clock: Clock, watchdog_s: float | None = None
    ) -> None:
        """`watchdog_s` is the time without `alive` after which it ends the process."""
        self._address = address
        self._clock = clock
        self._is_ready = False
        self._status = ""
        self._waiting: dict[str, bytes] = {}
        """Messages that the manager has not taken yet, the last one of each name."""
        self._sampled = log.Sampled(clock)
        self.watchdog_s = None if address is None else watchdog_s

    @classmethod
    def found(
        cls, environ: MutableMapping[str, str], *, pid: int, clock: Clock
    ) -> "ServiceManager":
        """Read it from `environ`, and remove the variables, so that no child inherits them.

        A watchdog meant for another process is ignored.
        """
        address, usec, meant_for = (
            environ.pop(name, None) for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        )
        watched = usec is not None and usec.isascii() and usec.isdigit() and int(usec) > 0
        is_ours = meant_for is None or meant_for == str(pid)
        watchdog_s = int(usec) / _USEC if usec and watched and is_ours else None
        return cls(address or None, clock=clock, watchdog_s=watchdog_s)

    def __bool__(self) -> bool:
        return self._address is not None

    def ready(self) -> None:
        """Both sides listen."""
        self._is_ready = True
        self._send("READY=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Report a reload during the block, and ready after it; silent before `ready`."""
        if not self._is_ready:
            yield
            return
        # Type=notify-reload compares it with the time of its signal.
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.monotonic() * _USEC)}")
        try:
            yield
        finally:
            # Unless a stop began meanwhile.
            if self._is_ready:
                self._send("READY=1")

    def stopping(self) -> None:
        self._is_ready = False
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, line: str) -> None:
        """Send the line that `systemctl status` shows, if it has changed, and waiting messages."""
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")
        else:
            self._send_waiting()

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        name = lines[0].partition("=")[0]
        self._waiting.pop(name, None)
        self._waiting[name] = "\n".join(lines).encode()
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send as much as the manager's queue takes; the event loop never waits."""
        if self._address is None or not self._waiting:
            return
        # "@" stands for the zero byte that begins the name of an abstract socket.
        name = self._address
        where = f"\0{name[1:]}" if name.startswith("@") else name
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                for key, message in list(self._waiting.items()):
                    sender.sendto(message, where)
                    del self._waiting[key]
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                self._waiting.clear()
            cause = os.strerror(error.errno) if error.errno else type(error).__name__
            self._sampled.line("manager.unreachable", reason=cause, path=name)
