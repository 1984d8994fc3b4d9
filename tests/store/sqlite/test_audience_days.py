"""The audience by day gives the counts of all rows, whatever is added, removed or damaged."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relay.core.event import Event
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store.audience import AudienceQuery, Funnel
from relay.store.sqlite import (
    audience_rollup,
    funnel,
    funnel_of_days,
    funnel_of_rows,
    funnel_span,
    schema,
)
from relay.store.sqlite.integrity import inspect
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.test_audience import ANN, BOB, BY_VIDEO, ask, fill, opened, people_of, watched
from tests.store.test_funnel import any_events

GROUPINGS = ("video", "day", "hour", "source")


@pytest.fixture(autouse=True)
def every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let days have each view at once, and take several steps for many."""
    monkeypatch.setattr(audience_rollup, "BATCH_MIN", 1)
    monkeypatch.setattr(audience_rollup, "BATCH_MAX", 50)
    monkeypatch.setattr(audience_rollup, "NUMBERED", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "relay.db"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with opened(path, clock) as one:
        yield one


def questions(random: Random) -> list[AudienceQuery]:
    """All groupings of random times, also on the bounds of days and half hours."""
    asked = []
    for by in GROUPINGS:
        zone = ZoneInfo(random.choice(("UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns")))
        unit = random.choice((1, HOUR_MS // 2, DAY_MS))
        times = sorted(
            (NOW_MS + random.randrange(-6 * DAY_MS, 6 * DAY_MS)) // unit * unit for _ in range(2)
        )
        since, until = random.choice((times, (None, times[1]), (times[0], None), (None, None)))
        asked.append(
            AudienceQuery(
                by=by,  # type: ignore[arg-type]
                since_ms=since,
                until_ms=until,
                source=random.choice((None, None, "main")),
                video=random.choice((None, None, "v1")),
                zone=zone,
                limit=random.choice((2, 1000)),
            )
        )
    return asked


def both(path: Path, question: AudienceQuery) -> tuple[Funnel | None, Funnel | None]:
    """Return the answer that days give, if they can, and that of all rows."""
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as db,
        pytest.MonkeyPatch.context() as patch,
    ):
        answer = funnel.ask(db, question)
        patch.setattr(funnel_of_days, "count", lambda *_: None)
        return answer, funnel.ask(db, question)


def rolled_to(store: SqliteStore) -> int:
    (row,) = ask(store, "SELECT coalesce(max(value), 0) FROM state WHERE name = 'audience_days'")
    return int(row[0])


@pytest.mark.parametrize("seed", range(8))
async def test_days_and_rows_give_the_same_counts(store: SqliteStore, seed: int) -> None:
    random = Random(seed)
    events = any_events(random, 400)
    await accept(store, *events[:300])
    await fill(store)
    assert rolled_to(store) > 0
    await accept(store, *events[300:])
    await store.audience.count()
    for _ in range(10):
        for question in questions(random):
            answer, expected = both(store.path, question)
            assert answer == expected, question


async def test_whole_days_read_no_rows(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await accept(store, *any_events(Random(1), 200))
    await fill(store)
    monkeypatch.setattr(funnel_of_rows, "count", _fails)
    monkeypatch.setattr(funnel_span, "ROWS_MAX", 0)
    for by in GROUPINGS:
        for zone in ("UTC", "Europe/Berlin", "Asia/Kolkata"):
            question = AudienceQuery(by=by, zone=ZoneInfo(zone))  # type: ignore[arg-type]
            assert (await store.audience.funnel(question)).total[0].events > 0


def _fails(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("zone", "video"), [("Asia/Kathmandu", None), ("Europe/Berlin", "v1"), ("UTC", "v1")]
)
async def test_rows_answer_where_days_cannot(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, zone: str, video: str | None
) -> None:
    await accept(store, *any_events(Random(2), 200))
    await fill(store)
    for limit in (0, 50_000):
        monkeypatch.setattr(funnel_span, "ROWS_MAX", limit)
        for by in GROUPINGS:
            question = AudienceQuery(by=by, zone=ZoneInfo(zone), video=video)  # type: ignore[arg-type]
            answer, expected = both(store.path, question)
            assert answer == expected


async def test_a_few_new_views_wait_for_more_and_are_counted_meanwhile(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience_rollup, "BATCH_MIN", 3)
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    assert rolled_to(store) == 0
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}
    await accept(store, watched("c"))
    await fill(store)
    assert rolled_to(store) == 3
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_concurrent_steps_add_nothing_twice(store: SqliteStore) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(150)))
    for _ in range(5):
        await asyncio.gather(*(store.audience.fill() for _ in range(5)))
    assert ask(store, "SELECT sum(events) FROM audience_days") == [(150,)]


async def test_a_restart_between_two_steps_loses_and_repeats_nothing(
    path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock) as store:
        await accept(store, *(watched(f"e{n}", f"p{n}@example.com") for n in range(80)))
        await store.audience.count()
        assert await store.audience.fill()
        assert ask(store, "SELECT sum(events) FROM audience_days") == [(50,)]
    async with opened(path, clock) as store:
        await fill(store)
        assert ask(store, "SELECT sum(events) FROM audience_days") == [(80,)]
        answer, expected = both(path, BY_VIDEO)
        assert answer == expected
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 80}


async def test_a_batch_is_added_once_and_not_after_a_new_beginning(
    store: SqliteStore,
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await store.audience.count()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as db:
        first = audience_rollup.next_batch(db)
        assert first is not None
        audience_rollup.number(db, first.new_people)
        for _ in range(2):
            audience_rollup.add(db, first, first.days(db))
        await accept(store, watched("c"))
        await store.audience.count()
        second = audience_rollup.next_batch(db)
        assert second is not None
        audience_rollup.reset(db)
        audience_rollup.add(db, second, second.days(db))
    assert ask(store, "SELECT count(*) FROM audience_days") == [(0,)]
    await fill(store)
    assert ask(store, "SELECT sum(events) FROM audience_days") == [(3,)]


async def test_an_older_store_is_rolled_up_in_the_background(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(step for step in schema.steps() if step.number < 13)
    with monkeypatch.context() as patch, closing(sqlite3.connect(path)) as db:
        patch.setattr(schema, "steps", lambda: older)
        db.isolation_level = None
        schema.migrate(db, now_ms=NOW_MS)
        db.execute("INSERT INTO videos VALUES (1, 'vid_1', 'Tour')")
        db.executemany(
            "INSERT INTO audience VALUES (?, 'main', 1, 'started', ?, ?)",
            [(n, n % 7, NOW_MS - n * HOUR_MS) for n in range(1, 121)],
        )
        db.execute("INSERT INTO state VALUES ('audience', 120)")
    async with opened(path, clock) as store:
        before = await store.audience.funnel(BY_VIDEO)
        assert rolled_to(store) == 0
        await fill(store)
        assert rolled_to(store) == 120
        assert await store.audience.funnel(BY_VIDEO) == before
        assert before.total[0].people == 7


async def test_an_erasure_removes_a_person_from_the_days(store: SqliteStore) -> None:
    random = Random(5)
    await accept(store, *any_events(random, 300))
    await fill(store)
    await accept(store, watched("not yet in a day", "ann@example.com"))
    before = await store.audience.funnel(BY_VIDEO)
    await store.personal_data.erase("ANN@example.com", now_ms=NOW_MS)
    for question in (*questions(random), *questions(random)):
        answer, expected = both(store.path, question)
        assert answer == expected
    # Only one other person has an address.
    assert max(people_of(before).values()) == 2
    assert max(people_of(await store.audience.funnel(BY_VIDEO)).values()) == 1
    assert ask(store, "SELECT count(*) FROM viewers") == [(1,)]


async def test_an_erased_person_who_returns_is_a_new_one(store: SqliteStore) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    known = ask(store, "SELECT number FROM viewers")
    await store.personal_data.erase(BOB, now_ms=NOW_MS)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    assert ask(store, "SELECT sum(events) FROM audience_days") == [(0,)]
    assert (await store.audience.funnel(BY_VIDEO)).groups == []
    await accept(store, watched("c"))
    await fill(store)
    (number,) = ask(store, "SELECT number FROM viewers")
    assert number not in known
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


async def test_views_stay_out_of_the_days_during_an_erasure(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept(store, watched("a"))
    await fill(store)
    seen: list[tuple[bool, int]] = []

    async def returns(*_: Any, **__: Any) -> Any:
        await accept(store, watched("b"))
        seen.append((await store.audience.fill(), rolled_to(store)))
        return await erase(*_, **__)

    erase = store.personal_data._erase
    monkeypatch.setattr(store.personal_data, "_erase", returns)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    assert seen == [(False, 1)]
    await fill(store)
    answer, expected = both(store.path, BY_VIDEO)
    assert answer == expected


async def test_an_erasure_that_is_repeated_after_a_crash_is_complete(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, clock) as store:
        await accept(store, watched("a"), watched("b"), watched("c", BOB))
        await fill(store)
        with monkeypatch.context() as patch:
            patch.setattr("relay.store.sqlite.erasure_log.end", _fails)
            with pytest.raises(Exception, match="not written"):
                await store.personal_data.erase(ANN, now_ms=NOW_MS)
        assert ask(store, "SELECT count(*) FROM viewers") == [(2,)]
    async with opened(path, clock) as store:
        await store.personal_data.erase(ANN, now_ms=NOW_MS)
        assert ask(store, "SELECT count(*) FROM viewers") == [(1,)]
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


@pytest.mark.parametrize("column", ["people", "half_hours", "viewers", "videos"])
@pytest.mark.parametrize(
    ("table", "start", "days"), [("audience_days", "day", 1), ("audience_weeks", "week", 7)]
)
async def test_damaged_counts_are_reported_and_made_anew(
    store: SqliteStore, column: str, table: str, start: str, days: int
) -> None:
    await accept(store, *any_events(Random(6), 200))
    await fill(store)
    with closing(sqlite3.connect(store.path)) as db:
        longer = f"CAST({column} || x'00' AS BLOB)"
        db.execute(f"UPDATE {table} SET {column} = {longer} WHERE number = 2")
        db.commit()
    ((start_ms,),) = ask(store, f"SELECT {start} FROM {table} WHERE number = 2")
    (fault,) = (await inspect(store.path)).faults
    assert fault.startswith("the audience of source ")
    until_ms = start_ms + days * DAY_MS
    for by in ("video", "hour"):
        question = AudienceQuery(by=by, since_ms=start_ms, until_ms=until_ms)
        found = await store.audience.funnel(question)
        assert (found, found) == both(store.path, question)
    await fill(store)
    assert (await inspect(store.path)).faults == ()


async def test_a_week_that_is_over_is_joined_until_a_day_of_it_changes(store: SqliteStore) -> None:
    def views(name: str, days: int) -> Event:
        return watched(name, at_ms=NOW_MS - days * DAY_MS)

    await accept(store, *(views(f"e{days}", days) for days in range(30)))
    await fill(store)
    weeks = ask(store, "SELECT week, events FROM audience_weeks ORDER BY week")
    assert [events for _, events in weeks[1:]] == [7] * (len(weeks) - 1)
    assert len(weeks) in (4, 5)
    await accept(store, views("late", 15))
    await store.audience.count()
    assert await store.audience.fill()
    assert len(ask(store, "SELECT 1 FROM audience_weeks")) == len(weeks) - 1
    for _ in range(2):
        for by in GROUPINGS:
            answer, expected = both(store.path, AudienceQuery(by=by))  # type: ignore[arg-type]
            assert answer == expected
        await fill(store)
    assert len(ask(store, "SELECT 1 FROM audience_weeks")) == len(weeks)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    assert ask(store, "SELECT count(*) FROM audience_weeks") == [(0,)]


async def test_a_step_that_finds_a_damaged_day_begins_again(store: SqliteStore) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE audience_days SET people = x''")
        db.commit()
    await accept(store, watched("c"))
    await fill(store)
    assert ask(store, "SELECT sum(events) FROM audience_days") == [(3,)]
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_an_erasure_that_finds_a_damaged_day_removes_the_person(store: SqliteStore) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    with closing(sqlite3.connect(store.path)) as db:
        db.execute("UPDATE audience_days SET people = x''")
        db.commit()
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    await fill(store)
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
    assert (await inspect(store.path)).faults == ()
