"""Numbers that are drawn before a commit: none is passed over."""

import asyncio

import psycopg
import pytest
from psycopg import sql

from relay.core.errors import StoreUnavailable
from relay.store import Store
from relay.store.postgres import visible_numbers
from tests.store.conformance import accept, event, lease, settlement
from tests.store.places import PostgresPlace

_INSERT = """
INSERT INTO {}.events (source, id, kind, received_at, digest) VALUES ('main', 'late', 'x', 0, '')
"""


async def accepted(store: Store) -> list[str]:
    return [each.id for each in await store.events.accepted(0, limit=9)]


async def test_an_event_that_is_committed_late_is_not_passed_over(
    store: Store, postgres_place: PostgresPlace
) -> None:
    with psycopg.connect(postgres_place.server.dsn) as other:
        other.execute(sql.SQL(_INSERT).format(sql.Identifier(postgres_place.schema)))
        await accept(store, event("early"))
        reading = asyncio.create_task(accepted(store))
        await asyncio.sleep(0.05)
        assert not reading.done()
        other.commit()
    assert await reading == ["late", "early"]


async def test_a_writer_that_takes_too_long_holds_up_what_follows_only(
    store: Store, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_numbers, "WAIT_S", 0.02)
    await accept(store, event("first"))
    assert await accepted(store) == ["first"]
    with psycopg.connect(postgres_place.server.dsn) as other:
        other.execute(sql.SQL(_INSERT).format(sql.Identifier(postgres_place.schema)))
        await accept(store, event("early"))
        assert await accepted(store) == ["first"]
        assert await store.events.accepted(1, limit=9) == []
        other.rollback()
    assert [each.id for each in await store.events.accepted(1, limit=9)] == ["early"]


async def test_attempts_are_read_on_from_any_number(store: Store) -> None:
    await accept(store, event("a"), event("b"))
    for delivery in (await lease(store)).deliveries:
        await store.settle(settlement(delivery))
    first, second = await store.events.attempted(0, limit=9)
    assert await store.events.attempted(first.number, limit=9) == [second]
    assert await store.events.attempted(second.number, limit=9) == []


async def test_a_replay_goes_up_to_an_event_that_is_being_accepted(
    store: Store, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible_numbers, "PATIENCE_S", 0.02)
    with psycopg.connect(postgres_place.server.dsn) as other:
        other.execute(sql.SQL(_INSERT).format(sql.Identifier(postgres_place.schema)))
        await accept(store, event("early"))
        with pytest.raises(StoreUnavailable, match="writes the table events has been under way"):
            await store.events.newest()
        monkeypatch.setattr(visible_numbers, "PATIENCE_S", 30.0)
        looking = asyncio.create_task(store.events.newest())
        await asyncio.sleep(0.05)
        assert not looking.done()
        assert await accept(store, event("not held up")) == ["accepted"]
        other.commit()
    assert (await looking).event == 2
