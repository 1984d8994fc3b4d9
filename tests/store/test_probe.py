"""A probe fails by what an acceptance would fail by, and by nothing else."""

from collections.abc import Awaitable

import pytest

from relay.core.errors import StoreError
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import Place, SqlitePlace

_REFUSE_LARGE = {
    "sqlite": """
CREATE TRIGGER refuse BEFORE INSERT ON events WHEN length(NEW.body) > 10000
BEGIN SELECT raise(ABORT, 'no room'); END
""",
    "postgres": """
DO $do$ BEGIN
    CREATE FUNCTION relay.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION USING errcode = 'disk_full'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON relay.events FOR EACH ROW
        WHEN (length(NEW.body) > 10000) EXECUTE FUNCTION relay.refuse();
END $do$
""",
}

_NO_LONGER = {
    "sqlite": "DROP TRIGGER refuse",
    "postgres": "DROP FUNCTION relay.refuse CASCADE",
}


@pytest.mark.parametrize(
    ("table", "column"),
    [("events", "headers"), ("deliveries", "turn"), ("deliveries", "settled_at")],
)
async def test_a_probe_fails_while_a_column_has_another_name(
    place: Place, clock: ManualClock, table: str, column: str
) -> None:
    async with place.open(clock) as store:
        await store.probe(size=1024)
        place.rows(f"ALTER TABLE relay.{table} RENAME COLUMN {column} TO elsewhere")
        assert not await _succeeds(accept(store, event("a")))
        assert not await _succeeds(store.probe(size=1024))
        place.rows(f"ALTER TABLE relay.{table} RENAME COLUMN elsewhere TO {column}")
        # SQLite may know the other name until the store is opened again.
        is_accepted = await _succeeds(accept(store, event("b")))
        assert await _succeeds(store.probe(size=1024)) == is_accepted


async def test_a_probe_is_as_large_as_the_body_that_failed(
    place: Place, clock: ManualClock
) -> None:
    engine = "sqlite" if isinstance(place, SqlitePlace) else "postgres"
    async with place.open(clock) as store:
        place.rows(_REFUSE_LARGE[engine])
        await store.probe(size=1024)
        with pytest.raises(StoreError):
            await store.probe(size=10_001)
        await accept(store, event("a"))
        place.rows(_NO_LONGER[engine])


async def _succeeds(write: Awaitable[object]) -> bool:
    try:
        await write
    except StoreError:
        return False
    return True


async def test_probes_use_up_no_numbers_of_a_store_in_a_file(
    sqlite_place: SqlitePlace, clock: ManualClock
) -> None:
    async with sqlite_place.open(clock) as store:
        await accept(store, event("a"))
        for _ in range(5):
            await store.probe(size=1024)
        await accept(store, event("b"))
    assert sqlite_place.rows("SELECT seq FROM events ORDER BY seq") == [(1,), (2,)]
