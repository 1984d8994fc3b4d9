"""A store of many events, written with a few statements: for searches, which only read.

`python -m benchmarks.million [EVENTS]` prints how long an operator's searches in it take.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import uvloop

from benchmarks import ids, rig
from relay.core.clock import SystemClock
from relay.core.routing import Route
from relay.store import keyed_digests
from relay.store.audience import counting, rollup
from relay.store.selection import Selection
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore

T = TypeVar("T")

DAYS = 30
DAY_MS = 86_400_000
VIDEOS = 400
PEOPLE = 50_000
BUDGET_S = 0.25
ROUNDS = 7

# One in 50 is a lead, one in 500 a video that is ready, and three were deleted long ago.
_EVENTS = """
INSERT INTO events (seq, source, id, kind, created_at, received_at, digest, headers, body)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :events),
typed AS (
    SELECT n,
        CASE
            WHEN n IN (5000, 5001, 5002) THEN 'video.deleted'
            WHEN n % 500 = 0 THEN 'video.ready'
            WHEN n % 50 = 0 THEN 'lead.captured'
            ELSE 'video.watched'
        END AS kind,
        'vid_' || (n * 7919 % :videos) AS video,
        'user' || (n * 104729 % :people) || '@example.com' AS email
    FROM numbers
)
SELECT n, 'main', printf('evt_%s%08d', hex(n * 2654435761 % 4294967296), n), kind,
    '2026-11-02T09:30:00.000Z', :start + n * :step, zeroblob(32),
    CAST('host: relay' || char(13, 10) || 'content-type: application/json' AS BLOB),
    CAST(CASE
        WHEN kind = 'video.watched' THEN json_object('event', kind, 'data', json_object(
            'video', json_object('id', video, 'title', 'Getting started'),
            'viewer', json_object('email', email, 'name', 'Jane Doe'),
            'progress', 50, 'milestone', '50%', 'page', :padding))
        WHEN kind = 'lead.captured' THEN json_object('event', kind, 'data', json_object(
            'video', json_object('id', video), 'email', email, 'name', 'Jane', 'page', :padding))
        ELSE json_object('event', kind, 'data', json_object('id', video, 'page', :padding))
    END AS BLOB)
FROM typed
"""
_TOTALS = """
INSERT INTO totals
SELECT source, kind, iif(kind = 'video.watched', '50%', ''), count(*), max(received_at)
FROM events GROUP BY 1, 2, 3
"""
# Ten are dead, and ten have waited since the first day.
_DELIVERIES = """
INSERT INTO deliveries (event, sink, status, attempts, due_at, settled_at, reason, tries)
SELECT seq, value, CASE
        WHEN value = 'crm' AND seq BETWEEN 1001 AND 1010 THEN 'dead'
        WHEN value = 'crm' AND seq BETWEEN 2001 AND 2010 THEN 'pending' ELSE 'delivered'
    END, 1, received_at, received_at + 200,
    iif(seq BETWEEN 1001 AND 1010, 'answered 422', NULL), 1
FROM events, json_each('["crm", "archive"]')
"""
_UNCOUNTED = "SELECT seq, source, kind, received_at, body, 0 FROM events ORDER BY seq"


async def build(path: Path, events: int) -> None:
    """Write a month of events for two sinks, and count their audience."""
    settings = SqliteSettings(path=str(path))
    await (await open_store(settings, clock=SystemClock())).close()
    start = time.time_ns() // 1_000_000 - DAYS * DAY_MS
    values = {
        "events": events,
        "videos": VIDEOS,
        "people": PEOPLE,
        "start": start,
        "step": DAYS * DAY_MS // events,
        "padding": "https://example.com/" + "x" * 150,
    }
    with sqlite3.connect(path) as db:
        db.executescript(ids.FAST)
        db.execute(_EVENTS, values)
        ids.index(db)
        db.execute(_TOTALS)
        db.execute(_DELIVERIES)
        _count(db)
    db.close()
    store = await open_store(settings, clock=SystemClock())
    # Nobody waits here, and a relay's steps are as many as they are small.
    with patch.object(rollup, "PART_ROWS", rollup.BATCH_MAX):
        while await store.audience.fill():
            pass
    await store.close()


def _count(db: sqlite3.Connection) -> None:
    """Count the audience as a relay does, but in a single transaction."""
    tables, (people, _) = SqliteAudienceTables(db), keyed_digests.digests(db)
    rows = db.execute(_UNCOUNTED)
    while found := rows.fetchmany(counting.STEP_ROWS):
        counting.count(tables, [counting.Uncounted(*row) for row in found], people)


async def measure(store: SqliteStore, events: int) -> list[tuple[str, ...]]:
    """Return a row for each search: median and longest time, and what came of it."""
    hour_ms = time.time_ns() // 1_000_000 - 25 * DAY_MS
    person = store.audience.person("user4711@example.com")
    cases = {
        "newest": Selection(),
        "a deep page": Selection(before=events // 10),
        "rare kind": Selection(kind="video.deleted"),
        "absent kind": Selection(kind="video.failed"),
        "one id": Selection(id="evt_0"),
        "a person": Selection(person=person),
        "a person's address": Selection(email="user4711@example.com"),
        "a video": Selection(video="vid_17"),
        "an absent video": Selection(video="vid_x"),
        "absent words": Selection(words="nowhere else"),
        "dead of a sink": Selection(sink="crm", outcome="dead"),
        "pending": Selection(outcome="pending"),
        "missed by a sink": Selection(sink="crm", outcome="missed"),
        "discarded": Selection(outcome="discarded"),
        "an old hour": Selection(since_ms=hour_ms, until_ms=hour_ms + 3_600_000),
        "an old hour of a source": Selection(
            source="main", since_ms=hour_ms, until_ms=hour_ms + 3_600_000
        ),
    }
    routes = [Route("crm"), Route("archive")]
    rows = list[tuple[str, ...]]()
    for name, selection in cases.items():
        find = partial(store.search.find, selection, routes, limit=50, budget_s=BUDGET_S)
        count = partial(store.search.count, selection, routes, budget_s=BUDGET_S)
        (found, find_ms), (counted, count_ms) = await _timed(find), await _timed(count)
        rest = "" if found.looked_to_ms is None else f", goes on from {found.next:,}"
        rows.append(
            (
                name,
                f"{len(found.events)}{rest}",
                find_ms,
                f"{'' if counted.complete else 'at least '}{counted.events:,}",
                count_ms,
            )
        )
    return rows


async def _timed(search: Callable[[], Awaitable[T]]) -> tuple[T, str]:
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        last = await search()
        times.append((time.perf_counter() - begun) * 1000)
    return last, f"{statistics.median(times):.1f} ({max(times):.1f})"


def main() -> None:
    print(rig.machine())
    uvloop.run(_print(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))


async def _print(events: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "relay.db"
        await build(path, events)
        store = await open_store(SqliteSettings(path=str(path)), clock=SystemClock())
        rows = await measure(store, events)
        await store.close()
    head = ("search", "found", "ms: median (longest)", "count", "ms: median (longest)")
    rig.table([head, *rows])


if __name__ == "__main__":
    main()
