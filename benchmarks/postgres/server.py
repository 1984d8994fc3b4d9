"""A PostgreSQL server for a benchmark, with a new store for each measurement."""

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop

from benchmarks import rig
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.store.postgres.opening import open_store
from relay.store.postgres.settings import PostgresSettings
from tests.postgres.server import PostgresServer

WAYS = ("socket", "TCP")
"""How a relay reaches the server."""

# The tests' server has less than PostgreSQL's own default.
_SETTINGS = """
shared_buffers = 128MB
log_line_prefix = '%a '
"""
_STATEMENT = re.compile(r"^relay LOG:  (?:statement|execute [^:]*): ", re.MULTILINE)
_numbers = count(1)


class Server:
    """Commits reach the disk, as PostgreSQL has it by default."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, and return its rows."""
        return self._server.execute(text)

    def dsn(self, way: str) -> str:
        """Return where a relay finds it by one of `WAYS`."""
        return self._server.socket_dsn if way == "socket" else self._server.dsn

    def processor_s(self) -> float:
        """Return the processor time so far of the server and of all that it has started."""
        lines = (self._server.data / "postmaster.pid").read_text(encoding="ascii").splitlines()
        server = int(lines[0])
        return sum(map(rig.processor_s, [server, *rig.children(server)]))

    @contextmanager
    def logged(self) -> Iterator[Callable[[], list[str]]]:
        """Log statements during the block; the value returns those of relays so far."""
        log = self._server.folder / "server.log"
        self._log_statements("all")
        began = log.stat().st_size
        try:
            yield lambda: _STATEMENT.findall(log.read_bytes()[began:].decode(errors="replace"))
        finally:
            self._log_statements("none")

    def _log_statements(self, which: str) -> None:
        self.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
        self.execute("SELECT pg_reload_conf()")

    @contextmanager
    def schema(self, way: str = "socket") -> Iterator[PostgresSettings]:
        """Create an empty store, and drop it afterwards."""
        name = f"relay_{next(_numbers)}"
        settings = PostgresSettings(dsn=Secret(self.dsn(way)), schema=name)
        uvloop.run(_create(settings))
        yield settings
        self.execute(f"DROP SCHEMA {name} CASCADE")


async def _create(settings: PostgresSettings) -> None:
    store = await open_store(settings, clock=SystemClock())
    await store.close()


@contextmanager
def running() -> Iterator[Server]:
    """Start a server in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = PostgresServer(Path(folder))
        try:
            server.create()
        except pytest.skip.Exception:
            sys.exit("PostgreSQL is needed: apt-get install postgresql")
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS)
        server.start()
        try:
            yield Server(server)
        finally:
            server.stop()
