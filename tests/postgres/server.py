"""A PostgreSQL server of Debian's packages that a test starts on loopback, and can hurt."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path

import psycopg
import pytest

from tests import scratch
from tests.ports import free_port

DEADLINE_S = 60.0

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
max_connections = 200
shared_buffers = 32MB
wal_log_hints = on
jit = off
"""
"""Compiling a statement takes longer than any that a test runs."""


def programs() -> Path:
    """Return the folder of the newest server's programs; skips the test where there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_major)
    if not found:
        pytest.skip("postgresql is not installed")
    return found[-1].parent


def _major(program: Path) -> int:
    return int(program.parent.parent.name)


class PostgresServer:
    """A cluster in a folder of its own; keeps its port over restarts.

    Connections over TCP and its socket need no password. It runs as a user without rights, because
    the server refuses to run as root.
    """

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None) -> None:
        programs()
        self.folder = folder / "postgres"
        self.port = free_port()
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def socket_dsn(self) -> str:
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    @cached_property
    def programs(self) -> Path:
        return programs()

    def _make_folder(self) -> None:
        _make_folder(self.folder)

    def create(self) -> None:
        self._make_folder()
        _run(self.folder, "cp", "-a", str(_new_cluster()), str(self.data))
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(port=self.port, folder=self.folder))

    def follow(self, primary: "PostgresServer") -> None:
        """Start as a streaming replica of another server, in place of `create` and `start`."""
        self._make_folder()
        self.run(
            *("pg_basebackup", "-D", str(self.data), "-R", "-X", "stream", "-c", "fast"),
            *("--no-sync", "-d", f"host=127.0.0.1 port={primary.port} user=postgres"),
        )
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(port=self.port, folder=self.folder))
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs to its end, as the server's user."""
        _run(self.folder, str(self.programs / program), *arguments)

    def start(self) -> None:
        """Return once it takes connections."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environ,
                user=_owner()[0],
                group=_owner()[1],
            )
        self.wait()

    def wait(self) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not self.is_ready():
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < end_s, "PostgreSQL does not take connections"
            time.sleep(0.02)

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send_signal(self, number: signal.Signals, pid: int | None = None) -> None:
        """Send it to the postmaster, or to one of its children."""
        os.kill(self.pid if pid is None else pid, number)

    def children(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def freeze(self) -> None:
        """Stop all of its processes; a new one cannot come."""
        for pid in (self.pid, *self.children()):
            self.send_signal(signal.SIGSTOP, pid)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        for pid in (*self.children(), self.pid):
            self.send_signal(signal.SIGCONT, pid)

    def restart(self) -> None:
        """End it as an immediate shutdown does, and start it again."""
        self.stop(signal.SIGQUIT)
        self.start()

    def kill(self) -> None:
        """End the postmaster as kill -9 does, and wait for its children."""
        self.stop(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if not self.is_running:
            self._process = None
            return
        assert self._process is not None
        children = self.children()
        self.send_signal(signal.SIGCONT)
        self.send_signal(how)
        self._process.wait()
        self._process = None
        end_s = time.monotonic() + DEADLINE_S
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < end_s, "PostgreSQL's processes do not end"
            time.sleep(0.01)

    def execute(self, text: str) -> list[tuple[object, ...]]:
        """Run one statement as the superuser, and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


@cache
def _new_cluster() -> Path:
    """Make the data of a new server once per process; to copy them takes a tenth of the time."""
    home = scratch.of_process() / "new"
    _make_folder(home)
    _run(
        home, str(programs() / "initdb"), "-D", str(home / "data"), "-A", "trust", "-U", "postgres",
        "--no-sync", "-E", "UTF8", "--locale=C.UTF-8",
    )  # fmt: skip
    return home / "data"


def _make_folder(folder: Path) -> None:
    """Make a folder of the server's user."""
    folder.mkdir()
    shutil.chown(folder, *_owner())
    for parent in folder.parents:  # pytest's own are private to root
        if parent.owner() == "root" and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


def _run(folder: Path, *command: str) -> None:
    """Run a program to its end, as the server's user."""
    user, group = _owner()
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, stdout=quiet, cwd=folder, user=user, group=group)


def _owner() -> tuple[int, int]:
    if os.getuid():
        return os.getuid(), os.getgid()
    user = pwd.getpwnam("postgres")
    return user.pw_uid, user.pw_gid
