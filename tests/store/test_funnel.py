"""The funnel equals a count of all accepted events."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core.event import LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, Event
from relay.store import Store
from relay.store.audience import (
    AudienceQuery,
    Group,
    Grouping,
    StepCount,
    counting,
    from_rows,
    rollup,
    zones,
)
from tests.conftest import NOW_MS
from tests.store.conformance import accept
from tests.store.places import Place
from tests.store.test_audience import BY_VIDEO, DAY_MS, event, fill, lead, watched

STEPS = (*MILESTONES, "lead")


def any_events(random: Random, count: int) -> list[Event]:
    """Viewers in several spellings, videos without a title or an id, and irrelevant events."""
    people = ("ann@example.com", " Ann@Example.COM ", "bob@example.com", "", None, 7)
    made: list[Event] = []
    for number in range(count):
        video = {"id": random.choice(("v1", "v2", "v3", None)), "title": f"title {number}"}
        if random.random() < 0.3:
            del video["title"]
        person = {"email": random.choice(people)}
        kind = random.choice((VIDEO_WATCHED, VIDEO_WATCHED, LEAD_CAPTURED, "video.ready", "other"))
        data: Any = {
            "video": video,
            "viewer": person,
            "milestone": random.choice((*MILESTONES, "x")),
        }
        if kind == LEAD_CAPTURED:
            data = {**person, "video": video}
        elif kind == "video.ready":
            data = video
        if random.random() < 0.05:
            data = ["nothing", person]
        made.append(
            event(
                f"evt_{random.randrange(count)}",
                kind,
                data,
                source=random.choice(("main", "academy")),
                at_ms=NOW_MS + random.randrange(-5 * DAY_MS, 5 * DAY_MS),
            )
        )
    return made


def facts(events: Iterable[Event]) -> list[tuple[str, str | None, str, str | None, int]]:
    """Source, video, step, person and time of each event that counts, read by hand."""
    known: dict[tuple[str, str], Event] = {}
    for each in events:
        known.setdefault((each.source, each.id), each)
    found = []
    for each in known.values():
        data = orjson.loads(each.body)["data"]
        if not isinstance(data, dict):
            data = {"email": None, "video": {"id": None}, "milestone": None}
        if each.kind not in (VIDEO_WATCHED, LEAD_CAPTURED):
            continue
        step = "lead" if each.kind == LEAD_CAPTURED else data["milestone"]
        email = (data.get("viewer") or data)["email"]
        person = email.strip().lower() or None if isinstance(email, str) else None
        if step in STEPS:
            found.append((each.source, data["video"]["id"], step, person, each.received_ms))
    return found


def counted(found: Iterable[tuple[Any, ...]], key: Callable[[tuple[Any, ...]], Any]) -> Any:
    """People, events and anonymous ones by group and step."""
    people: defaultdict[Any, list[Any]] = defaultdict(list)
    for each in found:
        people[key(each), each[2]].append(each[3])
    return {
        which: (len({one for one in those if one}), len(those), those.count(None))
        for which, those in people.items()
    }


def shown(groups: Sequence[Group], name: str) -> Any:
    return {
        (getattr(group, name), step): numbers
        for group in groups
        for step, numbers in numbers_of(group.steps).items()
    }


def numbers_of(steps: Sequence[StepCount]) -> dict[str, tuple[int, int, int]]:
    return {
        step.milestone or "lead": (step.people, step.events, step.anonymous)
        for step in steps
        if step.events
    }


@pytest.mark.parametrize("seed", range(12))
async def test_the_counts_equal_those_of_all_events(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(counting, "STEP_BYTES", random.choice((1, 300, 1 << 20)))
    # Some views are in days, and some are not yet.
    monkeypatch.setattr(rollup, "BATCH_MIN", random.choice((1, 7, 70)))
    events = any_events(random, 400)
    for start in range(0, 400, 80):
        await accept(store, *events[start : start + 80])
        await store.audience.fill()
    await fill(store)
    zone = ZoneInfo(
        random.choice(("UTC", "Asia/Kolkata", "America/St_Johns", "Australia/Lord_Howe"))
    )
    since, until = sorted(NOW_MS + random.randrange(-6 * DAY_MS, 6 * DAY_MS) for _ in range(2))
    source = random.choice((None, "main", "nobody"))
    video = random.choice((None, "v1", "v9"))
    fits = [
        each
        for each in facts(events)
        if since <= each[4] < until and source in (None, each[0]) and video in (None, each[1])
    ]
    asked = AudienceQuery(
        by="video", since_ms=since, until_ms=until, source=source, video=video, zone=zone
    )

    def day(fact: tuple[Any, ...]) -> str:
        return datetime.fromtimestamp(fact[4] / 1000, zone).date().isoformat()

    def hour(fact: tuple[Any, ...]) -> int:
        return datetime.fromtimestamp(fact[4] / 1000, zone).hour

    groupings: dict[Grouping, Callable[[tuple[Any, ...]], Any]] = {
        "video": lambda fact: fact[1],
        "source": lambda fact: fact[0],
        "day": day,
        "hour": hour,
    }
    for by, key in groupings.items():
        answer = await store.audience.funnel(replace(asked, by=by))
        assert shown(answer.groups, by) == counted(fits, key)
        assert numbers_of(answer.total) == {
            step: numbers for (_, step), numbers in counted(fits, lambda _: None).items()
        }
        assert answer.counted_until_ms is None


async def test_people_count_once_and_views_every_time(store: Store) -> None:
    await accept(
        store,
        watched("a"),
        watched("b", "ANN.LEE@example.com", video="vid_2"),
        watched("c", ""),
        lead("d"),
        lead("e"),
    )
    answer = await store.audience.funnel(BY_VIDEO)
    assert numbers_of(answer.total) == {"started": (1, 3, 1), "lead": (1, 2, 0)}
    assert [(each.video, numbers_of(each.steps)) for each in answer.groups] == [
        ("vid_1", {"started": (1, 2, 1), "lead": (1, 2, 0)}),
        ("vid_2", {"started": (1, 1, 0)}),
    ]


async def test_groups_beyond_the_limit_are_reported_and_are_in_the_total(
    store: Store,
) -> None:
    await accept(
        store, *(watched(f"e{n}", video=f"v{n}", at_ms=NOW_MS + n * DAY_MS) for n in range(4))
    )
    answer = await store.audience.funnel(AudienceQuery(by="video", limit=3))
    assert (len(answer.groups), answer.left_out, answer.total[0].events) == (3, 1, 4)
    answer = await store.audience.funnel(AudienceQuery(by="day", limit=3))
    assert (len(answer.groups), answer.left_out, answer.total[0].events) == (3, 1, 4)


@settings(deadline=None, max_examples=300)
@given(zone=st.sampled_from(sorted(available_timezones())), at_s=st.integers(0, 4_000_000_000))
def test_a_day_begins_before_all_of_its_times_in_every_zone(zone: str, at_s: int) -> None:
    there = ZoneInfo(zone)
    day, start_ms = zones.day_of(at_s * 1000, there)
    assert start_ms <= at_s * 1000
    assert zones.day_of(start_ms, there)[0] == day
    earlier = datetime.fromtimestamp(start_ms / 1000 - 1, UTC).astimezone(there)
    assert earlier.date().isoformat() != day


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def test_an_hour_is_what_the_clocks_showed_that_day(store: Store) -> None:
    """In Berlin, 02:30 came twice on 26 October 2025 and never on 30 March 2025."""
    times = {
        "2025-03-29T00:30Z": 1,
        "2025-03-30T00:59:59.999Z": 1,
        "2025-03-30T01:00Z": 3,
        "2025-10-26T00:30Z": 2,
        "2025-10-26T01:30Z": 2,
        "2025-10-26T02:30Z": 3,
        "2025-12-31T23:30Z": 0,
    }
    await accept(store, *(watched(text, at_ms=at(text)) for text in times))
    question = AudienceQuery(by="hour", zone=ZoneInfo("Europe/Berlin"))
    funnel = await store.audience.funnel(question)
    assert [each.hour for each in funnel.groups] == list(range(24))
    events = {each.hour: each.steps[0].events for each in funnel.groups if each.steps[0].events}
    assert events == {0: 1, 1: 2, 2: 2, 3: 2}
    assert {each.steps[0].people for each in funnel.groups} == {0, 1}
    cut = await store.audience.funnel(replace(question, limit=3))
    assert ([each.hour for each in cut.groups], cut.left_out) == ([0, 1, 2], 21)


async def test_an_empty_selection_has_no_hours(store: Store) -> None:
    assert (await store.audience.funnel(AudienceQuery(by="hour"))).groups == []


@settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    zone=st.sampled_from(sorted(available_timezones())),
    first_s=st.integers(0, 4_000_000_000),
    span_s=st.integers(0, 3 * 366 * 86_400),
    data=st.data(),
)
def test_the_hour_in_sql_equals_that_of_the_clocks_in_every_zone(
    place: Place, zone: str, first_s: int, span_s: int, data: st.DataObject
) -> None:
    there, last_s = ZoneInfo(zone), first_s + span_s
    asked = [first_s, last_s, *data.draw(st.lists(st.integers(first_s, last_s), max_size=20))]
    hour_of_day = from_rows.hour_of_day(first_s * 1000, last_s * 1000, there)
    values = ", ".join(
        f"({number}, CAST({at_s * 1000} AS bigint))" for number, at_s in enumerate(asked)
    )
    times = f"WITH times(number, at) AS (VALUES {values})"
    hours = [
        hour for (hour,) in place.rows(f"{times} SELECT {hour_of_day} FROM times ORDER BY number")
    ]
    assert hours == [datetime.fromtimestamp(at_s, there).hour for at_s in asked]
