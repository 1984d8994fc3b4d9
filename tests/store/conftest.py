"""The engines that the store's tests run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.places import Place, PooledPlace, PostgresPlace, SqlitePlace


@pytest.fixture
def sqlite_place(tmp_path: Path) -> SqlitePlace:
    return SqlitePlace(tmp_path)


@pytest.fixture
def postgres_place() -> Iterator[PostgresPlace]:
    place = PostgresPlace()
    yield place
    place.drop()


@pytest.fixture
def other_place(place: Place, tmp_path: Path) -> Iterator[Place]:
    """Return another place, on the same engine."""
    if isinstance(place, SqlitePlace):
        yield SqlitePlace(tmp_path / "other")
        return
    other = PostgresPlace()
    yield other
    other.drop()


@pytest.fixture
def pooled_place() -> Iterator[PooledPlace]:
    place = PooledPlace()
    yield place
    place.drop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def place(request: pytest.FixtureRequest) -> Place:
    """Return a place on each engine in turn."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found
