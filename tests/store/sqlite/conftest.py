"""A store on SQLite, and its file."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.places import SqlitePlace


@pytest.fixture
def path(sqlite_place: SqlitePlace) -> Path:
    return sqlite_place.path


@pytest.fixture
async def store(sqlite_place: SqlitePlace, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with sqlite_place.open(clock) as store:
        yield store
