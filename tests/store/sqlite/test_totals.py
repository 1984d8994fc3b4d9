"""Totals of a store that was written before they were stored."""

import sqlite3
from contextlib import closing
from random import Random

import pytest

from relay.store.sqlite import schema
from tests.conftest import NOW_MS, ManualClock
from tests.store.places import SqlitePlace
from tests.store.test_totals import any_events, expected, held


async def test_an_older_store_starts_its_totals_from_its_remaining_events(
    sqlite_place: SqlitePlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = any_events(Random(7), 200)
    older = tuple(step for step in schema.steps() if step.number < 9)
    with monkeypatch.context() as patch, closing(sqlite3.connect(sqlite_place.path)) as db:
        patch.setattr(schema, "steps", lambda: older)
        db.isolation_level = None
        schema.migrate(db, now_ms=NOW_MS)
        db.executemany(
            "INSERT INTO events (source, id, kind, received_at, digest, body)"
            " VALUES (?, ?, ?, ?, x'00', ?) ON CONFLICT DO NOTHING",
            [(one.source, one.id, one.kind, one.received_ms, one.body) for one in events],
        )
        db.execute("UPDATE events SET body = NULL WHERE kind = 'lead.captured'")
    async with sqlite_place.open(clock) as store:
        assert held(store) == expected(events)
