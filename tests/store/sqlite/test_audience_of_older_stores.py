"""The audience of an older store is derived from its remaining bodies and rows."""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from relay.core.minutes import HOUR_MS
from relay.store.sqlite import schema
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import SqlitePlace
from tests.store.test_audience import BY_VIDEO, fill, opened
from tests.store.test_audience_days import every_view, rolled_to
from tests.store.test_funnel import any_events, counted, facts, shown


async def test_an_older_store_is_counted_from_its_remaining_bodies(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, path = any_events(Random(3), 300), sqlite_place.path
    older = tuple(step for step in schema.steps() if step.number < 9)
    with monkeypatch.context() as patch, closing(sqlite3.connect(path)) as db:
        patch.setattr(schema, "steps", lambda: older)
        db.isolation_level = None
        schema.migrate(db, now_ms=NOW_MS)
        db.executemany(
            "INSERT INTO events (source, id, kind, received_at, digest, body)"
            " VALUES (?, ?, ?, ?, x'00', ?) ON CONFLICT DO NOTHING",
            [(each.source, each.id, each.kind, each.received_ms, each.body) for each in events],
        )
        db.execute("UPDATE events SET body = NULL WHERE source = 'academy'")
    kept = [each for each in facts(events) if each[0] == "main"]
    async with opened(sqlite_place, clock) as store:
        answer = await store.audience.funnel(BY_VIDEO)
        assert shown(answer.groups, "video") == counted(kept, lambda fact: fact[1])


@pytest.mark.usefixtures(every_view.__name__)
async def test_an_older_store_is_rolled_up_in_the_background(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(step for step in schema.steps() if step.number < 13)
    with monkeypatch.context() as patch, closing(sqlite3.connect(sqlite_place.path)) as db:
        patch.setattr(schema, "steps", lambda: older)
        db.isolation_level = None
        schema.migrate(db, now_ms=NOW_MS)
        db.execute("INSERT INTO videos VALUES (1, 'vid_1', 'Tour')")
        db.executemany(
            "INSERT INTO audience VALUES (?, 'main', 1, 'started', ?, ?)",
            [(n, n % 7, NOW_MS - n * HOUR_MS) for n in range(1, 121)],
        )
        db.execute("INSERT INTO state VALUES ('audience', 120)")
    async with opened(sqlite_place, clock) as store:
        before = await store.audience.funnel(BY_VIDEO)
        assert rolled_to(sqlite_place) == 0
        await fill(store)
        assert rolled_to(sqlite_place) == 120
        assert await store.audience.funnel(BY_VIDEO) == before
        assert before.total[0].people == 7
