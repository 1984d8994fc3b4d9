"""A place for stores on PostgreSQL."""

from collections.abc import Iterator

import pytest

from tests.store.places import PostgresPlace


@pytest.fixture
def place() -> Iterator[PostgresPlace]:
    place = PostgresPlace()
    yield place
    place.drop()
