"""Processes of the relay that begin with its modules loaded: importing them takes most of a start.

`python -m tests.guarantees.warm FD` loads them, and forks a process for each request on its socket.
Apart from that, such a process is one of `python -m relay`: with its own files, environment,
signals and end.
"""

import asyncio
import atexit
import fcntl
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import BinaryIO

import orjson

from tests import loop_watch

_MODULES = ("relay.cli.serve", "relay.sinks.http", "relay.store.sqlite.opening")
_LONGEST = 1 << 17
"""Longest request, of which the environment is most."""
_MOST = 16
"""Most descriptors that come with it."""
_FIRST_HANDED = 3
"""Number of the first socket that systemd hands over."""


class WarmProcess:
    """What `asyncio.subprocess.Process` is, as far as tests need it."""

    def __init__(self, pid: int, told: socket.socket) -> None:
        self.pid = pid
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(told, self._read)

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def _read(self) -> None:
        self._loop.remove_reader(self._told)
        with self._told:
            self._end.set_result(int(self._told.recv(64)))


def suits(environ: Mapping[str, str]) -> bool:
    """Whether a variable is for the interpreter or the linker, which begin only once."""
    return not any(name.startswith(("LD_", "PYTHON")) for name in environ)


async def start(
    *arguments: str, environ: Mapping[str, str], output: BinaryIO, handed: Sequence[int] = ()
) -> WarmProcess:
    """Start `relay ARGUMENTS` with an empty stdin, and with sockets as systemd hands them over."""
    told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"arguments": arguments, "environ": dict(environ), "folder": os.getcwd()}  # noqa: PTH109
    with tells:
        fds = [output.fileno(), tells.fileno(), *handed]
        socket.send_fds(_server(), [orjson.dumps(request)], fds)
    told.settimeout(0)
    return WarmProcess(int(await asyncio.get_running_loop().sock_recv(told, 64)), told)


@cache
def _server() -> socket.socket:
    """Start it for the first process; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(its.fileno())],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "default"},
            pass_fds=[its.fileno()],
        )
    atexit.register(server.wait)
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> list[str]:
    """Return only in the processes that were asked for, with the arguments of each."""
    running: dict[int, tuple[int, int]] = {}
    poll = select.poll()
    poll.register(requests.fileno(), select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                poll.unregister(fd)
                pid, tells = running.pop(fd)
                os.close(fd)
                _tell(tells, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(tells)
                continue
            text, fds, _, _ = socket.recv_fds(requests, _LONGEST, _MOST)
            if not text:
                requests.close()
                sys.exit()
            output, tells, *handed = fds
            pid = os.fork()
            if pid == 0:
                requests.close()
                return _begin(text, output, handed)
            for each in (output, *handed):
                os.close(each)
            _tell(tells, pid)
            ended = os.pidfd_open(pid)
            running[ended] = pid, tells
            poll.register(ended, select.POLLIN)


def _tell(fd: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(fd, str(number).encode())


def _begin(text: bytes, output: int, handed: Sequence[int]) -> list[str]:
    """Take on what is to be the process's own."""
    request = orjson.loads(text)
    os.dup2(output, 1)
    os.dup2(output, 2)
    end = _FIRST_HANDED + len(handed)
    # None of them may be overwritten by one before it.
    away = [fcntl.fcntl(fd, fcntl.F_DUPFD, end) for fd in handed]
    for number, fd in enumerate(away, _FIRST_HANDED):
        os.dup2(fd, number)
    os.closerange(end, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    if handed:
        # Only the started process knows its PID.
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(handed)))
    return list(request["arguments"])


def _main() -> None:
    gc.disable()
    for module in _MODULES:
        import_module(module)
    gc.freeze()
    gc.enable()
    sys.argv = ["relay", *_serve(socket.socket(fileno=int(sys.argv[1])))]
    loop_watch.watch_uvloop()
    import_module("relay.__main__").main()


if __name__ == "__main__":
    _main()
