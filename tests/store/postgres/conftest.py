"""A server that a test may hurt."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres.server import PostgresServer


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path)
    server.create()
    server.start()
    yield server
    server.stop()
