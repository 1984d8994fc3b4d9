"""States of sinks over the last days."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay.core.config_values import Size
from relay.core.sink_status import State
from relay.store.sink_states import KEPT_MS, Span
from relay.store.sqlite import sink_states
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from tests.conftest import NOW_MS, ManualClock

SECOND_MS = 1000
DAY_MS = 86_400_000
STATES: tuple[State, ...] = ("active", "throttled", "parked", "paused")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteStore]:
    settings = SqliteSettings(path=str(folder / "relay.db"), min_free=Size.parse("1B"))
    store = await open_store(settings, clock=ManualClock())
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(tmp_path) as store:
        yield store


async def note(store: SqliteStore, at_ms: int, **states: State | None) -> None:
    await store.sink_states.note(states, now_ms=at_ms)


async def spans(
    store: SqliteStore, sink: str = "crm", *, since_ms: int = 0
) -> list[tuple[State | None, int, int | None]]:
    """Return a sink's spans, with times since `NOW_MS`."""
    found = (await store.sink_states.since(since_ms)).get(sink, ())
    return [
        (span.state, span.from_ms - NOW_MS, None if span.to_ms is None else span.to_ms - NOW_MS)
        for span in found
    ]


def rows(store: SqliteStore) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as other:
        return other.execute("SELECT sink, at, state FROM sink_states ORDER BY 1, 2").fetchall()


async def test_changes_are_spans_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        assert await store.sink_states.since(0) == {}
        await note(store, NOW_MS, crm="active", slack="paused")
        await note(store, NOW_MS + 5, crm="parked")
    async with opened(tmp_path) as store:
        assert await store.sink_states.since(0) == {
            "crm": [Span("active", NOW_MS, NOW_MS + 5), Span("parked", NOW_MS + 5, None)],
            "slack": [Span("paused", NOW_MS, None)],
        }


async def test_the_same_state_again_adds_no_row(store: SqliteStore) -> None:
    await note(store, NOW_MS, crm="active", gone=None)
    await note(store, NOW_MS + 5, crm="active", gone=None)
    assert rows(store) == [("crm", NOW_MS, "active")]


async def test_spans_begin_at_the_requested_time(store: SqliteStore) -> None:
    await note(store, NOW_MS, crm="active")
    await note(store, NOW_MS + 10, crm="parked")
    await note(store, NOW_MS + 20, crm="active")
    assert await spans(store, since_ms=NOW_MS + 9) == [
        ("active", 9, 10),
        ("parked", 10, 20),
        ("active", 20, None),
    ]
    assert await spans(store, since_ms=NOW_MS + 10) == [("parked", 10, 20), ("active", 20, None)]
    assert await spans(store, since_ms=NOW_MS + 99) == [("active", 99, None)]
    assert (await spans(store, since_ms=NOW_MS - 5))[0] == ("active", 0, 10)


async def test_a_sink_that_is_gone_has_no_known_state(store: SqliteStore) -> None:
    await note(store, NOW_MS, crm="parked")
    await note(store, NOW_MS + 5, crm=None)
    await note(store, NOW_MS + 9, crm="active")
    assert await spans(store) == [("parked", 0, 5), (None, 5, 9), ("active", 9, None)]


async def test_old_changes_go_but_never_a_current_state(store: SqliteStore) -> None:
    await note(store, NOW_MS, calm="active", crm="active", gone="parked")
    await note(store, NOW_MS + 1, crm="parked", gone=None)
    await note(store, NOW_MS + 2, crm="active")
    now_ms = NOW_MS + 3 + KEPT_MS
    await note(store, now_ms, crm="paused")
    assert rows(store) == [
        ("calm", NOW_MS, "active"),
        ("crm", NOW_MS + 2, "active"),
        ("crm", now_ms, "paused"),
    ]
    assert await spans(store, "calm", since_ms=now_ms) == [("active", 3 + KEPT_MS, None)]


async def test_the_last_change_counts_while_the_clock_stands_still(store: SqliteStore) -> None:
    await note(store, NOW_MS - 5, crm="active")
    for state in ("parked", "throttled", "paused"):
        await note(store, NOW_MS, crm=state)
    assert await spans(store) == [("active", -5, 0), ("paused", 0, None)]
    await note(store, NOW_MS, crm="active")
    assert await spans(store) == [("active", -5, None)]


async def test_changes_from_before_the_clock_was_set_back_are_one(store: SqliteStore) -> None:
    await note(store, NOW_MS, crm="active", calm="active")
    await note(store, NOW_MS + DAY_MS, crm="parked", calm="paused")
    await note(store, NOW_MS + DAY_MS + 5, crm="paused")
    await note(store, NOW_MS + 10, crm="active")
    assert await spans(store) == [("active", 0, None)]
    assert await spans(store, "calm") == [("active", 0, 10), ("paused", 10, None)]
    assert all(at <= NOW_MS + 10 for _, at, _ in rows(store))


async def test_spans_are_those_of_a_plain_list_of_changes(store: SqliteStore) -> None:
    random = Random(11)
    changes: list[tuple[int, State | None]] = []
    for _ in range(120):
        at_ms = (changes[-1][0] if changes else NOW_MS) + random.randrange(1, DAY_MS // 4)
        changes.append((at_ms, random.choice((*STATES, None))))
        await note(store, at_ms, crm=changes[-1][1], other=random.choice(STATES))
        since_ms = at_ms - random.randrange(KEPT_MS)
        moments = [random.randrange(since_ms, at_ms + 1) for _ in range(5)]
        found = (await store.sink_states.since(since_ms)).get("crm", ())
        for moment in moments:
            expected = next((state for at, state in reversed(changes) if at <= moment), None)
            covering = [
                span.state
                for span in found
                if span.from_ms <= moment and (span.to_ms is None or moment < span.to_ms)
            ]
            assert covering == [expected] or (covering == [] and expected is None)
    assert len(rows(store)) < 120


@pytest.mark.parametrize(
    "sql",
    [
        sink_states._DROP_LATER,
        sink_states._MOVE_LATER,
        sink_states._CHANGE,
        sink_states._FORGET,
        sink_states._FORGET_UNKNOWN,
    ],
)
async def test_a_change_does_not_read_the_others(store: SqliteStore, sql: str) -> None:
    values = {"now": 1, "old": 1, "sink": "crm", "state": "active"}
    plan = await store._shared.reader.read(
        lambda db: db.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    )
    assert not [step for *_, step in plan if step.startswith("SCAN ") and "CONSTANT" not in step]
