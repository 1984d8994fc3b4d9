"""A primary and its streaming replica, which has all that is acknowledged."""

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

from tests.postgres.server import DEADLINE_S, PostgresServer


class Pair:
    """Two servers that change their parts; both ports stay the same."""

    def __init__(self, folder: Path, *, environ: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environ = environ
        self._numbers = count(1)
        self.primary = self._server()
        self.replica = self._server()

    def __enter__(self) -> Self:
        self.primary.create()
        self.primary.start()
        self.replica.follow(self.primary)
        self._wait_for_replica()
        return self

    def __exit__(self, *_: object) -> None:
        self.replica.stop()
        self.primary.stop()

    @property
    def dsn(self) -> str:
        ports = f"{self.primary.port},{self.replica.port}"
        return (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=postgres "
            "target_session_attrs=read-write connect_timeout=2"
        )

    def promote(self) -> None:
        """Kill the primary, and let the replica take its place."""
        self.primary.kill()
        self.replica.run("pg_ctl", "promote", "-w", "-D", str(self.replica.data))
        self.primary, self.replica = self.replica, self.primary

    def follow(self) -> None:
        """Let a new replica follow the promoted server, in place of the dead one."""
        port = self.replica.port
        self.replica = self._server()
        self.replica.port = port
        self.replica.follow(self.primary)
        self._wait_for_replica()

    def start_again(self) -> None:
        """Start whichever has ended by itself."""
        for server in (self.primary, self.replica):
            if not server.is_running:
                server.start()

    def _server(self) -> PostgresServer:
        folder = self._folder / f"server-{next(self._numbers)}"
        folder.mkdir()
        return PostgresServer(folder, environ=self._environ)

    def _wait_for_replica(self) -> None:
        """Let the primary commit nothing that its replica has not got."""
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.execute("SELECT pg_reload_conf()")
        end_s = time.monotonic() + DEADLINE_S
        while not self.primary.execute(
            "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        ):
            assert time.monotonic() < end_s, "the replica is not synchronous"
            time.sleep(0.02)
