"""Inspections of a store in PostgreSQL."""

import asyncio

import pytest

from relay.core.config_values import Secret
from relay.core.delivery import Status
from relay.core.errors import StoreLacks
from relay.store.postgres import digests, engine, schema
from relay.store.postgres.settings import PostgresSettings
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import PostgresPlace

NEWEST = schema.steps()[-1].number


def settings(place: PostgresPlace) -> PostgresSettings:
    return PostgresSettings(dsn=Secret(place.server.dsn), schema=place.schema)


def receive(place: PostgresPlace, *ids: str) -> None:
    """Store events with a delivered, a pending and a dead delivery in turn."""
    for number, id_ in enumerate(ids):
        status = ("delivered", "pending", "dead")[number % 3]
        place.rows(
            """
            WITH new AS (
                INSERT INTO relay.events (source, id, kind, received_at, digest, body)
                VALUES ('main', %s, 'lead.captured', %s, sha256('{}'), '{}') RETURNING seq
            )
            INSERT INTO relay.deliveries (event, sink, status, due_at)
            SELECT seq, 'crm', %s, 0 FROM new
            """,
            id_,
            NOW_MS,
            status,
        )


async def test_a_sound_store_is_counted(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()) as store:
        receive(postgres_place, *"abcd")
        inspection = await store.inspections.inspect()
    assert inspection.faults == ()
    assert inspection.size_bytes > 100_000
    content = inspection.content
    assert content is not None
    assert (content.schema, content.events, content.unreadable) == (NEWEST, 4, 0)
    assert content.deliveries == {
        Status.PENDING: 1,
        Status.DELIVERED: 2,
        Status.DEAD: 1,
        Status.DISCARDED: 0,
    }
    assert {sink: counts[Status.DEAD] for sink, counts in content.sinks.items()} == {"crm": 1}
    assert await engine.inspect(settings(postgres_place)) == inspection


async def test_damage_is_found_over_several_steps(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "STEP_ROWS", 2)
    async with postgres_place.open(ManualClock()) as store:
        receive(postgres_place, *"abcdefg")
        for statement in (
            "UPDATE relay.events SET body = 'x' WHERE id IN ('c', 'g')",
            "UPDATE relay.events SET body = NULL WHERE id = 'd'",
            "DELETE FROM relay.events WHERE id = 'b'",
            """
            INSERT INTO relay.attempts
                (event, sink, started_at, duration_ms, result, reason, answer)
            SELECT number, 'crm', 0, 0, 'retry', '', '' FROM unnest(ARRAY[1, 2, 99]) AS a (number)
            """,
            """
            INSERT INTO relay.audience_days
                (day, source, step, events, anonymous, people, half_hours, viewers, videos)
            VALUES (0, 'main', 'lead', 1, 0, 'x', 'x', 'x', 'x')
            """,
            """
            INSERT INTO relay.unreadable (source, digest, received_at, reason, body)
            VALUES ('main', sha256('{}'), 0, '', '[]')
            """,
        ):
            postgres_place.rows(statement)
        faults = (await store.inspections.inspect()).faults
    assert [fault.partition(":")[0] for fault in faults] == [
        "event c of source main",
        "event g of source main",
        "unreadable request 44136fa355b3 of source main",
        "deliveries are of the missing event 2",
        "attempts are of the missing event 2",
        "attempts are of the missing event 99",
        "the audience of source main on 1970-01-01",
    ]


async def test_the_schema_of_a_newer_relay_is_a_fault(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()):
        postgres_place.rows("INSERT INTO relay.migrations VALUES (9999, 'later', '', 0)")
    (fault,) = (await engine.inspect(settings(postgres_place))).faults
    assert fault.startswith(f"its schema is number 9999, this relay knows up to {NEWEST}")


async def test_a_schema_without_a_store_is_a_fault(postgres_place: PostgresPlace) -> None:
    inspection = await engine.inspect(settings(postgres_place))
    assert inspection.content is None
    assert inspection.faults == (
        f"the schema {postgres_place.schema} is not a store; serve creates it",
    )


async def test_a_server_that_is_away_is_a_fault() -> None:
    gone = PostgresSettings(dsn=Secret("host=127.0.0.1 port=1 user=relay"))
    (fault,) = (await engine.inspect(gone)).faults
    assert fault.startswith("the database cannot be reached")


async def test_closing_the_store_ends_an_inspection(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()) as store:
        inspecting = asyncio.create_task(store.inspections.inspect())
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await inspecting


async def test_a_backup_is_refused_with_what_to_use_instead(postgres_place: PostgresPlace) -> None:
    async with postgres_place.open(ManualClock()) as store:
        store.backups.clear()
        with pytest.raises(StoreLacks, match="pg_dump") as refused:
            async with store.backups.copied():
                pass
        assert str(refused.value) == store.backups.instead
