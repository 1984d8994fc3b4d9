"""The audience by day gives the counts of all rows, whatever is added, removed or damaged."""

import asyncio
from collections.abc import Mapping
from random import Random
from zoneinfo import ZoneInfo

import pytest

from relay.core.event import Event
from relay.core.minutes import DAY_MS, HOUR_MS
from relay.store import Store
from relay.store.audience import AudienceQuery, Funnel, from_days, from_rows, rollup
from relay.store.audience.days import Day, Key
from relay.store.audience.writes import AudienceWrites
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept
from tests.store.erasing import erase
from tests.store.places import Place
from tests.store.test_audience import ANN, BOB, BY_VIDEO, fill, opened, people_of, watched
from tests.store.test_funnel import any_events

pytestmark = pytest.mark.long

GROUPINGS = ("video", "day", "hour", "source")


@pytest.fixture(autouse=True)
def every_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let days have each view at once, and take several steps for many."""
    monkeypatch.setattr(rollup, "BATCH_MIN", 1)
    monkeypatch.setattr(rollup, "BATCH_MAX", 50)
    monkeypatch.setattr(rollup, "NUMBERED", 2)
    monkeypatch.setattr(rollup, "PART_ROWS", 7)


def questions(random: Random) -> list[AudienceQuery]:
    """All groupings of random times, including times exactly on day and half-hour boundaries."""
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


async def both(store: Store, question: AudienceQuery) -> tuple[Funnel, Funnel]:
    """Return the answer that days give, if they can, and that of all rows."""
    answer = await store.audience.funnel(question)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_days, "count", lambda *_: None)
        return answer, await store.audience.funnel(question)


def rolled_to(place: Place) -> int:
    sql = "SELECT coalesce(max(value), 0) FROM relay.state WHERE name = 'audience_days'"
    ((event,),) = place.rows(sql)
    return int(event)


@pytest.mark.parametrize("seed", range(8))
async def test_days_and_rows_give_the_same_counts(store: Store, place: Place, seed: int) -> None:
    random = Random(seed)
    events = any_events(random, 400)
    await accept(store, *events[:300])
    await fill(store)
    assert rolled_to(place) > 0
    await accept(store, *events[300:])
    await store.audience.count()
    for _ in range(10):
        for question in questions(random):
            answer, expected = await both(store, question)
            assert answer == expected, question


async def test_whole_days_read_no_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await accept(store, *any_events(Random(1), 200))
    await fill(store)
    monkeypatch.setattr(from_rows, "count", _fails)
    monkeypatch.setattr(from_days, "ROWS_MAX", 0)
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
    store: Store, monkeypatch: pytest.MonkeyPatch, zone: str, video: str | None
) -> None:
    await accept(store, *any_events(Random(2), 200))
    await fill(store)
    for limit in (0, 50_000):
        monkeypatch.setattr(from_days, "ROWS_MAX", limit)
        for by in GROUPINGS:
            question = AudienceQuery(by=by, zone=ZoneInfo(zone), video=video)  # type: ignore[arg-type]
            answer, expected = await both(store, question)
            assert answer == expected


async def test_a_few_new_views_wait_for_more_and_are_counted_until_then(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "BATCH_MIN", 3)
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    assert rolled_to(place) == 0
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}
    await accept(store, watched("c"))
    await fill(store)
    assert rolled_to(place) == 3
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_concurrent_steps_add_nothing_twice(store: Store, place: Place) -> None:
    await accept(store, *(watched(f"e{n}") for n in range(150)))
    for _ in range(5):
        await asyncio.gather(*(store.audience.fill() for _ in range(5)))
    assert place.rows("SELECT sum(events) FROM relay.audience_days") == [(150,)]


async def test_a_restart_between_two_steps_loses_and_repeats_nothing(
    place: Place, clock: ManualClock
) -> None:
    async with opened(place, clock) as store:
        await accept(store, *(watched(f"e{n}", f"p{n}@example.com") for n in range(80)))
        await store.audience.count()
        assert await store.audience.fill()
        assert place.rows("SELECT sum(events) FROM relay.audience_days") == [(50,)]
    async with opened(place, clock) as store:
        await fill(store)
        assert place.rows("SELECT sum(events) FROM relay.audience_days") == [(80,)]
        answer, expected = await both(store, BY_VIDEO)
        assert answer == expected
        assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 80}


async def test_an_erasure_removes_a_person_from_the_days(store: Store, place: Place) -> None:
    random = Random(5)
    await accept(store, *any_events(random, 300))
    await fill(store)
    await accept(store, watched("not yet in a day", "ann@example.com"))
    before = await store.audience.funnel(BY_VIDEO)
    await erase(store, "ANN@example.com", now_ms=NOW_MS)
    for question in (*questions(random), *questions(random)):
        answer, expected = await both(store, question)
        assert answer == expected
    # Only one other person has an address.
    assert max(people_of(before).values()) == 2
    assert max(people_of(await store.audience.funnel(BY_VIDEO)).values()) == 1
    assert place.rows("SELECT count(*) FROM relay.viewers") == [(1,)]


async def test_an_erased_person_who_returns_is_a_new_one(store: Store, place: Place) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    known = place.rows("SELECT number FROM relay.viewers")
    await erase(store, BOB, now_ms=NOW_MS)
    await erase(store, ANN, now_ms=NOW_MS)
    assert place.rows("SELECT sum(events) FROM relay.audience_days") == [(0,)]
    assert (await store.audience.funnel(BY_VIDEO)).groups == []
    await accept(store, watched("c"))
    await fill(store)
    (number,) = place.rows("SELECT number FROM relay.viewers")
    assert number not in known
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}


@pytest.mark.parametrize("column", ["people", "half_hours", "viewers", "videos"])
@pytest.mark.parametrize(("start", "days"), [("day", 1), ("week", 7)])
async def test_damaged_counts_are_reported_and_made_anew(
    store: Store, place: Place, column: str, start: str, days: int
) -> None:
    await accept(store, *any_events(Random(6), 200))
    await fill(store)
    table = f"relay.audience_{start}s"
    _, (number, start_ms, content), *_ = place.rows(
        f"SELECT number, {start}, {column} FROM {table} ORDER BY number"
    )
    longer = bytes(content) + bytes(1)
    place.rows(f"UPDATE {table} SET {column} = %s WHERE number = %s", longer, number)
    (fault,) = (await store.inspections.inspect()).faults
    assert fault.startswith("the audience of source ")
    until_ms = start_ms + days * DAY_MS
    for by in ("video", "hour"):
        question = AudienceQuery(by=by, since_ms=start_ms, until_ms=until_ms)
        found = await store.audience.funnel(question)
        assert (found, found) == await both(store, question)
    await fill(store)
    assert (await store.inspections.inspect()).faults == ()


async def test_a_week_that_is_over_is_joined_until_a_day_of_it_changes(
    store: Store, place: Place
) -> None:
    def views(name: str, days: int) -> Event:
        return watched(name, at_ms=NOW_MS - days * DAY_MS)

    await accept(store, *(views(f"e{days}", days) for days in range(30)))
    await fill(store)
    weeks = place.rows("SELECT week, events FROM relay.audience_weeks ORDER BY week")
    assert [events for _, events in weeks[1:]] == [7] * (len(weeks) - 1)
    assert len(weeks) in (4, 5)
    await accept(store, views("late", 15))
    await store.audience.count()
    assert await store.audience.fill()
    assert len(place.rows("SELECT 1 FROM relay.audience_weeks")) == len(weeks) - 1
    for _ in range(2):
        for by in GROUPINGS:
            answer, expected = await both(store, AudienceQuery(by=by))  # type: ignore[arg-type]
            assert answer == expected
        await fill(store)
    assert len(place.rows("SELECT 1 FROM relay.audience_weeks")) == len(weeks)
    await erase(store, ANN, now_ms=NOW_MS)
    assert place.rows("SELECT count(*) FROM relay.audience_weeks") == [(0,)]


async def test_a_step_that_finds_a_damaged_day_begins_again(store: Store, place: Place) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    place.rows("UPDATE relay.audience_days SET people = %s", b"")
    await accept(store, watched("c"))
    await fill(store)
    assert place.rows("SELECT sum(events) FROM relay.audience_days") == [(3,)]
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 2}


async def test_an_erasure_that_finds_a_damaged_day_removes_the_person(
    store: Store, place: Place
) -> None:
    await accept(store, watched("a"), watched("b", BOB))
    await fill(store)
    place.rows("UPDATE relay.audience_days SET people = %s", b"")
    await erase(store, ANN, now_ms=NOW_MS)
    await fill(store)
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
    assert (await store.inspections.inspect()).faults == ()


async def test_an_erasure_writes_a_day_once_in_each_transaction_however_many_views_it_has(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accept(store, *(watched(f"e{number}") for number in range(60)), watched("b", BOB))
    await fill(store)
    saves, save = list[object](), rollup._save

    def counting_save(tables: AudienceWrites, days: Mapping[Key, Day]) -> None:
        saves.extend(days)
        save(tables, days)

    monkeypatch.setattr(rollup, "_save", counting_save)
    erased = await erase(store, ANN, now_ms=NOW_MS)
    assert erased.views == 60
    # Five rows in each transaction.
    assert len(saves) <= 12
    assert people_of(await store.audience.funnel(BY_VIDEO)) == {"started": 1}
