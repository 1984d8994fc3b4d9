"""A place for the cluster's store."""

from collections.abc import Iterator

import pytest

from tests.store.places import PostgresPlace


@pytest.fixture
def postgres_place() -> Iterator[PostgresPlace]:
    place = PostgresPlace()
    yield place
    place.drop()
