"""A server that a test may hurt."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.postgres.server import PostgresServer


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    # Not in pytest's folder: each other run on the machine closes that to the server's user.
    with TemporaryDirectory() as folder:
        server = PostgresServer(Path(folder))
        server.create()
        server.start()
        yield server
        server.stop()
