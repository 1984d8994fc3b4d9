"""The schema on a real server: created once, whoever comes first, and never migrated back."""

import asyncio

import pytest

from relay.core.errors import StoreTooNew
from relay.store import engines
from relay.store.postgres import schema
from relay.store.postgres.driver import Database
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import PostgresPlace


async def test_relays_that_start_together_create_it_once(postgres_place: PostgresPlace) -> None:
    async def start() -> None:
        async with postgres_place.open(ManualClock()):
            pass

    await asyncio.gather(*(start() for _ in range(4)))
    numbers = postgres_place.rows("SELECT number FROM relay.migrations ORDER BY number")
    assert numbers == [(step.number,) for step in schema.steps()]


async def test_a_relay_serves_the_schema_of_a_newer_one_that_names_it(
    postgres_place: PostgresPlace,
) -> None:
    newest = schema.steps()[-1].number
    async with postgres_place.open(ManualClock()):
        postgres_place.rows(
            "INSERT INTO relay.migrations VALUES (9999, 'later', '', 0, %s)", newest
        )
    async with postgres_place.open(ManualClock()) as store:
        assert await accept(store, event("a")) == ["accepted"]
    what = await engines.of(postgres_place.settings()).reach(postgres_place.settings())
    assert what is not None
    assert what.text.endswith(
        f"at 9999, newer than {newest}, the newest of this relay, which serves it"
    )


async def test_one_migration_that_names_no_older_relay_keeps_all_of_them_out(
    postgres_place: PostgresPlace,
) -> None:
    newest = schema.steps()[-1].number
    async with postgres_place.open(ManualClock()):
        postgres_place.rows("INSERT INTO relay.migrations VALUES (9998, 'other', '', 0, 9998)")
        postgres_place.rows(
            "INSERT INTO relay.migrations VALUES (9999, 'later', '', 0, %s)", newest
        )
    with pytest.raises(StoreTooNew, match="is number 9999, this relay knows up to"):
        async with postgres_place.open(ManualClock()):
            pass


async def test_the_first_schema_is_migrated_beside_relays_that_use_it(
    postgres_place: PostgresPlace,
) -> None:
    first = schema.steps()[0]
    db = Database(postgres_place.server.dsn, postgres_place.schema)
    try:
        db.create_schema()
        db.execute(
            "CREATE TABLE relay.migrations (number integer PRIMARY KEY, name text NOT NULL, "
            "sha256 text NOT NULL, applied_at bigint NOT NULL)"
        )
        db.run_script(first.sql)
        db.execute("INSERT INTO relay.migrations VALUES (1, %s, '', 0)", (first.name,))
    finally:
        db.close()
    async with postgres_place.open(ManualClock()):
        found = postgres_place.rows("SELECT number, oldest FROM relay.migrations ORDER BY number")
    assert found == [(1, None), *((each.number, each.oldest) for each in schema.steps()[1:])]


async def test_the_schema_of_a_newer_relay_is_left_as_it_is(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()):
        postgres_place.rows("INSERT INTO relay.migrations VALUES (9999, 'later', '', 0)")
    with pytest.raises(StoreTooNew, match="is number 9999, this relay knows up to"):
        async with postgres_place.open(ManualClock()):
            pass
