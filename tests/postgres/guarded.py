"""A server that lets in by password only, over TLS if asked, and the ways to be kept out of it."""

import atexit
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psycopg

from tests import scratch
from tests.brokers.authority import Authority
from tests.ports import free_port
from tests.postgres.server import DEADLINE_S, PostgresServer

PASSWORD = "marked-password"
_HBA = """
host all,replication postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


class GuardedServer:
    """The server with a database `relay` and three roles.

    `owner` may create schemas, `guest` may not, and `reader` may use the schema `relay` and create
    nothing in it.
    """

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.server = PostgresServer(folder)
        self.server.create()
        self._authority = Authority(folder / "ca")
        self.stranger = Authority(folder / "stranger").file
        """A certificate with which the server's own does not verify."""
        self._certify()
        self.server.start()
        for statement in (
            "CREATE DATABASE relay",
            *(
                f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"
                for role in ("owner", "guest", "reader")
            ),
            "GRANT CREATE ON DATABASE relay TO owner",
        ):
            self.server.execute(statement)
        self.run("CREATE SCHEMA closed")
        self.run("GRANT USAGE ON SCHEMA closed TO reader")

    def dsn(self, user: str = "owner", **changed: object) -> str:
        """Return a DSN that lets in, but for what is changed."""
        values = {
            "host": "127.0.0.1",
            "port": self.server.port,
            "dbname": "relay",
            "user": user,
            "password": PASSWORD,
        }
        return " ".join(f"{key}={value}" for key, value in (values | changed).items())

    @property
    def authority(self) -> Path:
        """The certificate with which the server's own verifies."""
        return self._authority.file

    def run(self, text: str) -> list[tuple[object, ...]]:
        """Run one statement in the database `relay` as the superuser, and return its rows."""
        dsn = self.server.dsn.replace("dbname=postgres", "dbname=relay")
        with psycopg.connect(dsn, autocommit=True) as db:
            cursor = db.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def replica(self, folder: Path) -> Iterator[str]:
        """Run a copy that follows the server, and give the DSN of its `owner`."""
        copy = PostgresServer(folder)
        copy.follow(self.server)
        try:
            yield self.dsn(port=copy.port)
        finally:
            copy.stop()

    def _certify(self) -> None:
        data = self.server.data
        shutil.copy(self._authority.issue("server"), data / "server.pem")
        shutil.chown(data / "server.pem", data.owner(), data.group())
        (data / "server.pem").chmod(0o600)
        (data / "pg_hba.conf").write_text(_HBA)
        with (data / "postgresql.conf").open("a") as settings:
            settings.write("ssl = on\nssl_cert_file = 'server.pem'\nssl_key_file = 'server.pem'\n")


@contextmanager
def disguised(port: int, *, said: bytes, says: bytes) -> Iterator[int]:
    """Give a port at which the server says something else of itself, of the same length."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        thread = threading.Thread(target=_serve, args=(listener, port, said, says), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE_S)


def _serve(listener: socket.socket, port: int, said: bytes, says: bytes) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for source, target in ((client, server), (server, client)):
                pump = threading.Thread(
                    target=_pump, args=(source, target, said, says), daemon=True
                )
                pump.start()


def _pump(source: socket.socket, target: socket.socket, said: bytes, says: bytes) -> None:
    with suppress(OSError), source, target:
        while data := source.recv(1 << 16):
            target.sendall(data.replace(said, says))
        target.shutdown(socket.SHUT_WR)


@cache
def guarded_server() -> GuardedServer:
    """Start it for the first test; it ends with the process."""
    guarded = GuardedServer(scratch.of_process())
    atexit.register(guarded.server.stop)
    return guarded
