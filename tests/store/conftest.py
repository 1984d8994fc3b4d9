"""The engines that the store's tests run on."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from relay.store import Store
from tests.conftest import ManualClock
from tests.store.places import Place, PooledPlace, ReusedPlace, SqlitePlace


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture
def reused_place() -> Iterator[ReusedPlace]:
    place = ReusedPlace()
    yield place
    place.drop()


@pytest.fixture
def other_place(place: Place, tmp_path: Path) -> Iterator[Place]:
    """Return another place, on the same engine."""
    if isinstance(place, SqlitePlace):
        yield SqlitePlace(tmp_path / "other")
        return
    other = ReusedPlace()
    yield other
    other.drop()


@pytest.fixture
def pooled_place() -> Iterator[PooledPlace]:
    place = PooledPlace()
    yield place
    place.drop()


def of_engine(request: pytest.FixtureRequest, engine: str) -> Place:
    name = "reused" if engine == "postgres" else engine
    found: Place = request.getfixturevalue(f"{name}_place")
    return found


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Place:
    """Return a place on each engine in turn."""
    return of_engine(request, request.param)


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with place.open(clock) as store:
        yield store
