"""Erasures in PostgreSQL: what other relays do beside them, and what the server keeps."""

import asyncio
from typing import TYPE_CHECKING, cast
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from relay.core.config_values import Secret
from relay.store import Store
from relay.store.personal_data_places import EVENTS
from relay.store.postgres import vacuum
from relay.store.postgres.opening import open_store
from relay.store.postgres.settings import PostgresSettings
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept
from tests.store.places import PostgresPlace
from tests.store.test_personal_data import ANN, erase, event

if TYPE_CHECKING:
    from relay.store.postgres.store import PostgresStore


def own(place: PostgresPlace, sink: str, *, for_s: float = 60) -> None:
    """Let another relay own a sink."""
    place.rows(
        """
        INSERT INTO relay.ownership (sink, holder, fence, expires_at)
        VALUES (%s, %s, 1, clock_timestamp() + make_interval(secs => %s))
        """,
        sink,
        uuid4(),
        for_s,
    )


async def opened(place: PostgresPlace, **role: str) -> Store:
    """Open a store as a relay does, so that it owns no sink yet."""
    dsn = " ".join((place.server.dsn, *(f"{key}={value}" for key, value in role.items())))
    settings = PostgresSettings(dsn=Secret(dsn), schema=place.schema)
    return cast("Store", await open_store(settings, clock=ManualClock()))


async def test_a_delivery_that_another_relay_may_be_sending_is_reported(
    postgres_place: PostgresPlace,
) -> None:
    store = await opened(postgres_place)
    own(postgres_place, "sales")
    own(postgres_place, "crm", for_s=-60)
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    counted = await store.personal_data.count(ANN)
    erased = await erase(store)
    assert [(each.sink, each.id) for each in erased.under_way] == [("sales", "a")]
    assert counted.under_way == erased.under_way
    assert (counted.pending, erased.pending) == (2, 2)
    await store.close()


async def test_a_removal_that_is_repeated_reports_the_same(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await accept(store, event("a"), event("b"), verdicts=[TAKES, OTHER])
        background = cast("PostgresStore", store)._shared.background
        removal = store.personal_data._removal
        reports = [
            await background.transact(lambda db: removal.remove_rows(db, EVENTS, [1, 2], NOW_MS))
            for _ in range(2)
        ]
        assert reports[0] == reports[1]
        assert reports[0].erasure((), wiped=False, remains="").pending == 4


async def test_an_erasure_discards_what_a_replay_under_way_opens(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await accept(store, event("a"), verdicts=[TAKES])
        with psycopg.connect(postgres_place.server.dsn) as other:
            name = sql.Identifier(postgres_place.schema)
            other.execute(sql.SQL("SELECT 1 FROM {}.events FOR SHARE").format(name))
            opened = "INSERT INTO {}.deliveries (event, sink, status, due_at) VALUES "
            other.execute(sql.SQL(opened + "(1, 'crm', 'pending', 0)").format(name))
            erasing = asyncio.create_task(erase(store))
            done, _ = await asyncio.wait({erasing}, timeout=0.5)
            assert not done
            other.commit()
        assert (await erasing).pending == 2
        assert set(postgres_place.rows("SELECT status FROM relay.deliveries")) == {("discarded",)}


async def test_a_count_of_the_audience_under_way_is_erased_too(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await accept(store, event("a"))
        digests = cast("PostgresStore", store)._shared.digests
        await store.audience.fill()
        postgres_place.rows("DELETE FROM relay.audience")
        with psycopg.connect(postgres_place.server.dsn) as other:
            name = sql.Identifier(postgres_place.schema)
            other.execute(sql.SQL("SELECT * FROM {}.state FOR UPDATE").format(name))
            add = sql.SQL("INSERT INTO {}.audience VALUES (1, 'main', NULL, 'lead', %s, %s)")
            other.execute(add.format(name), (digests.number(ANN), NOW_MS))
            erasing = asyncio.create_task(erase(store))
            done, _ = await asyncio.wait({erasing}, timeout=0.5)
            assert not done
            other.commit()
        assert (await erasing).views == 1
        assert postgres_place.rows("SELECT count(*) FROM relay.audience") == [(0,)]


async def test_the_tables_are_vacuumed_and_the_report_says_what_remains(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await accept(store, event("a"))
        erased = await erase(store)
        assert not erased.wiped
        assert erased.remains.startswith("VACUUM has run on the tables. PostgreSQL overwrites")
        ((vacuumed,),) = postgres_place.rows(
            """
            SELECT count(*) FROM pg_stat_user_tables
            WHERE schemaname = %s AND last_vacuum IS NOT NULL
            """,
            postgres_place.schema,
        )
        assert vacuumed == len(vacuum.ERASABLE)


async def test_a_vacuum_that_takes_long_is_reported_and_finished_after_a_restart(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "WAIT_S", 0.2)
    name = sql.Identifier(postgres_place.schema)
    with psycopg.connect(postgres_place.server.dsn) as other:
        async with postgres_place.open(ManualClock()) as store:
            await accept(store, event("a"))
            lock = sql.SQL("LOCK {}.viewers IN SHARE UPDATE EXCLUSIVE MODE").format(name)
            other.execute(lock)
            assert (await erase(store)).remains.startswith("VACUUM has not run yet")
            (record,) = await store.personal_data.erasures(limit=1)
            assert record.erasure is not None
            assert record.erasure.remains.startswith("VACUUM has not run yet")
    async with postgres_place.open(ManualClock()) as store, asyncio.timeout(30):
        while True:
            (record,) = await store.personal_data.erasures(limit=1)
            assert record.erasure is not None
            if record.erasure.remains.startswith("VACUUM has run"):
                break
            await asyncio.sleep(0.02)


async def test_a_role_that_may_not_vacuum_says_so(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()) as store:
        await accept(store, event("a"))
    role, schema = "guest", sql.Identifier(postgres_place.schema).as_string()
    postgres_place.rows(f"CREATE ROLE {role} LOGIN")
    postgres_place.rows(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}")
    for what in ("TABLES", "SEQUENCES"):
        postgres_place.rows(f"GRANT ALL ON ALL {what} IN SCHEMA {schema} TO {role}")
    store = await opened(postgres_place, user=role)
    assert (await erase(store)).remains.startswith("VACUUM has not run yet")
    await store.close()
    postgres_place.drop()
    postgres_place.rows(f"DROP ROLE {role}")
