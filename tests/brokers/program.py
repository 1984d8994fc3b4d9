"""A server's program that a test starts on loopback, in a folder of its own, and can hurt."""

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from tests.ports import free_port

DEADLINE_S = 60.0
"""RabbitMQ needs 4 s where nothing else is done."""


class Program(ABC):
    """Keeps its port and its folder over restarts."""

    name: str

    def __init__(self, folder: Path) -> None:
        if shutil.which(self.name) is None:
            pytest.skip(f"{self.name} is not installed")
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]: ...

    def start(self) -> None:
        """Return once the port takes connections."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end_s = time.monotonic() + DEADLINE_S
        while not self.listens():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < end_s, f"{self.name} does not listen"
            time.sleep(0.02)

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Start again if it does not run."""
        if self._process is None:
            self.start()

    def freeze(self) -> None:
        """Return once it really stands still."""
        self.signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
