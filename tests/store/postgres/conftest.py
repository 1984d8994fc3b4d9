"""A store on PostgreSQL, and a server that a test may hurt."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from relay.store import Store
from tests.conftest import ManualClock
from tests.postgres.server import PostgresServer
from tests.store.places import PostgresPlace


@pytest.fixture
async def store(postgres_place: PostgresPlace, clock: ManualClock) -> AsyncIterator[Store]:
    async with postgres_place.open(clock) as store:
        yield store


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    # Not in pytest's folder: each other run on the machine closes that to the server's user.
    with TemporaryDirectory() as folder:
        server = PostgresServer(Path(folder))
        server.create()
        server.start()
        yield server
        server.stop()
