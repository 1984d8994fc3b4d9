"""What a service manager is told about this process: ready, reloading, stopping, alive.

The protocol is that of sd_notify(3): one datagram of lines to a socket that it names.
"""

import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from relay.core.clock import Clock
from relay.telemetry import log

SEND_TIMEOUT_S = 0.1
"""For a manager that does not read; the event loop waits with it, and its queue is long."""

_USEC = 1_000_000


class ServiceManager:
    """Whoever started the process and wants to be told; where there is none, nothing is sent."""

    def __init__(
        self, address: str | None, *, clock: Clock, watchdog_s: float | None = None
    ) -> None:
        """`watchdog_s` is how long it waits for `alive` before it ends the process."""
        self._address = address
        self._clock = clock
        self._is_ready = False
        self._status = ""
        self._sampled = log.Sampled(clock)
        self.watchdog_s = None if address is None else watchdog_s

    @classmethod
    def found(
        cls, environ: MutableMapping[str, str], *, pid: int, clock: Clock
    ) -> "ServiceManager":
        """The one that `environ` names, if any; the variables are removed, so no child sees them.

        A watchdog that another process was told of is not ours.
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
        """All listens."""
        self._is_ready = True
        self._send("READY=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Whatever becomes of it, the service goes on after it; nothing is told before `ready`."""
        if not self._is_ready:
            yield
            return
        # Type=notify-reload compares it with the time of its signal.
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.monotonic() * _USEC)}")
        try:
            yield
        finally:
            # It may have been told to stop meanwhile.
            if self._is_ready:
                self._send("READY=1")

    def stopping(self) -> None:
        self._is_ready = False
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, line: str) -> None:
        """One line for whoever asks how the service is doing; sent where it is another one."""
        if line != self._status:
            self._status = line
            self._send(f"STATUS={line}")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # "@" stands for the zero byte at the start of a name that is in no directory.
        name = self._address
        where = f"\0{name[1:]}" if name.startswith("@") else name
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT_S)
                sender.sendto("\n".join(lines).encode(), where)
        except OSError as error:
            cause = os.strerror(error.errno) if error.errno else type(error).__name__
            self._sampled.line("manager.unreachable", reason=cause, path=name)
