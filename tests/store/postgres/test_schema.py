"""The schema on a real server: created once, whoever comes first, and never migrated back."""

import asyncio

import pytest

from relay.core.errors import StoreTooNew
from relay.store.postgres import schema
from tests.conftest import ManualClock
from tests.store.places import PostgresPlace


async def test_relays_that_start_together_create_it_once(postgres_place: PostgresPlace) -> None:
    async def start() -> None:
        async with postgres_place.open(ManualClock()):
            pass

    await asyncio.gather(*(start() for _ in range(4)))
    numbers = postgres_place.rows("SELECT number FROM relay.migrations ORDER BY number")
    assert numbers == [(step.number,) for step in schema.steps()]


async def test_the_schema_of_a_newer_relay_is_left_as_it_is(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()):
        postgres_place.rows("INSERT INTO relay.migrations VALUES (9999, 'later', '', 0)")
    with pytest.raises(StoreTooNew, match="is number 9999, this relay knows up to"):
        async with postgres_place.open(ManualClock()):
            pass
