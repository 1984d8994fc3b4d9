"""PgBouncer of Debian's packages in transaction mode, in front of a server that a test has."""

import os
from pathlib import Path

from tests.brokers.program import Program
from tests.postgres.server import PostgresServer

POOL_SIZE = 6
"""Connections to the server: fewer than the relays of one test open, so that they share them."""

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
log_connections = 0
log_disconnections = 0
"""


class PgBouncer(Program):
    name = "pgbouncer"

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        super().__init__(folder)
        settings = _SETTINGS.format(
            server=server.port, port=self.port, folder=folder, size=POOL_SIZE
        )
        if not os.getuid():  # it refuses to stay root
            settings += "user = postgres\n"
        (folder / "pgbouncer.ini").write_text(settings)
        (folder / "users").write_text('"postgres" ""\n')
        folder.chmod(0o755)

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def command(self) -> list[str]:
        return [self.name, str(self.folder / "pgbouncer.ini")]
