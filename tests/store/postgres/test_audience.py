"""Several relays count one audience: each event once, and none before it is certain."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from random import Random

import psycopg
import pytest
from psycopg import sql

from relay.store import Store
from relay.store.audience import rollup
from relay.store.audience.reads import COUNTED_TO, ROLLED_TO
from relay.store.postgres.audience_tables import PostgresAudienceTables, wait_for
from relay.store.postgres.driver import Database
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.places import PostgresPlace
from tests.store.test_audience import BOB, BY_VIDEO, fill, opened, people_of, watched
from tests.store.test_audience_days import both, questions
from tests.store.test_funnel import any_events

WAITING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
async def members(
    postgres_place: PostgresPlace, clock: ManualClock
) -> AsyncIterator[tuple[Store, Store]]:
    async with opened(postgres_place, clock) as one, opened(postgres_place, clock) as other:
        yield one, other


@contextmanager
def transaction(place: PostgresPlace) -> Iterator[psycopg.Connection]:
    """Begin one that the block ends, or that ends with the block."""
    with psycopg.connect(place.server.dsn) as db:
        yield db


def named(place: PostgresPlace, text: str) -> bytes:
    return text.replace("relay.", f"{sql.Identifier(place.schema).as_string()}.").encode()


@pytest.mark.long
async def test_members_that_count_at_once_count_each_event_once(
    members: tuple[Store, Store], postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    monkeypatch.setattr(rollup, "BATCH_MAX", 70)
    one, other = members
    events = any_events(Random(7), 400)

    async def receive(member: Store, half: slice) -> None:
        for event in events[half]:
            await accept(member, event)
            await member.audience.fill()

    await asyncio.gather(receive(one, slice(0, None, 2)), receive(other, slice(1, None, 2)))
    await asyncio.gather(fill(one), fill(other))
    await fill(one)
    ((views,),) = postgres_place.rows("SELECT count(*) FROM relay.audience")
    ((days,),) = postgres_place.rows("SELECT sum(events) FROM relay.audience_days")
    assert views == days > 0
    random = Random(1)
    for _ in range(3):
        for question in questions(random):
            answer, expected = await both(other, question)
            assert answer == expected, question


async def test_a_member_does_not_wait_for_another_one_that_is_counting(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, _ = members
    await accept(one, watched("a"))
    await one.audience.count()
    await accept(one, watched("b", BOB))
    lock = named(postgres_place, "SELECT 1 FROM relay.state WHERE name = %s FOR UPDATE")
    with transaction(postgres_place) as other:
        other.execute(lock, (COUNTED_TO,))
        assert not await one.audience.count()
        answer = await one.audience.funnel(BY_VIDEO)
        assert (people_of(answer), answer.counted_until_ms) == ({"started": 1}, NOW_MS)
    assert people_of(await one.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_the_count_waits_for_an_earlier_event_that_is_still_being_accepted(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    one, other = members
    await accept(one, watched("first"))
    body = watched("late", BOB).body
    with transaction(postgres_place) as db:
        db.execute(
            named(
                postgres_place,
                "INSERT INTO relay.events (source, id, kind, received_at, digest, body)"
                " VALUES ('main', 'late', 'video.watched', %s, '', %s)",
            ),
            (NOW_MS, body),
        )
        await accept(other, watched("last"))
        counting = asyncio.create_task(fill(other))
        await asyncio.sleep(0.1)
        assert not counting.done()
        assert await accept(other, watched("during the wait")) == ["accepted"]
    await counting
    assert people_of(await other.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_a_person_who_returns_during_an_erasure_keeps_the_number(
    members: tuple[Store, Store], postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    one, other = members
    await accept(one, watched("erased"), watched("b", BOB))
    await fill(one)
    await accept(other, watched("returned"))
    await fill(other)
    ((number,),) = postgres_place.rows(
        "SELECT min(person) FROM relay.audience GROUP BY person HAVING count(*) = 2"
    )
    db = Database(postgres_place.server.dsn, postgres_place.schema)
    tables = PostgresAudienceTables(db)
    with db.transaction():
        wait_for(db, ROLLED_TO)
        rollup.uncount(tables, [1])
    with db.transaction():
        wait_for(db, ROLLED_TO)
        rollup.forget_person(tables, number)
    db.close()
    assert people_of(await one.audience.funnel(BY_VIDEO)) == {"started": 2}
    for question in questions(Random(2)):
        answer, expected = await both(one, question)
        assert answer == expected, question
    await accept(one, watched("again"))
    await fill(one)
    assert people_of(await one.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_views_of_few_videos_use_up_few_numbers(
    members: tuple[Store, Store], postgres_place: PostgresPlace
) -> None:
    """A number has 32 bits, and a conflict would use one up."""
    one, _ = members
    for number in range(5):
        await accept(one, watched(f"e{number}", title=f"title {number}"))
        await fill(one)
    await accept(one, watched("last", video="vid_2"))
    await fill(one)
    assert postgres_place.rows("SELECT max(number) FROM relay.videos") == [(2,)]
    assert postgres_place.rows("SELECT max(number) FROM relay.viewers") in ([(1,)], [(None,)])


async def test_text_that_the_server_refuses_is_counted(members: tuple[Store, Store]) -> None:
    one, _ = members
    await accept(one, watched("a", video="nul \0", title="nul \0"), watched("b", BOB))
    answer = await one.audience.funnel(BY_VIDEO)
    assert people_of(answer) == {"started": 2}
    assert {each.title for each in answer.groups} == {"nul \ufffd", "Tour"}
