"""Audience: viewers by milestone, and leads, for marketing."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from relay.admin.api.audience import GROUPS_MAX, AudienceFilter, show_audience
from relay.admin.page import charts
from relay.admin.page.view import Download, Section, View
from relay.admin.page.views.audience.range import (
    PERIODS,
    VIDEOS_MAX,
    Chosen,
    Days,
    days_of,
    zone_names,
)
from relay.admin.page.visit import Context, Visit
from relay.store.audience import Funnel, Group, Grouping, StepCount

DAYS_SHOWN = 92
TICKS = 5

WAIT_S = 5
"""Time that a visitor waits for the counts of a large store."""

COLUMNS = ("started", "25%", "50%", "75%", "completed", "lead")
NAMES = ("Started", "25 %", "50 %", "75 %", "Completed", "Leads")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a funnel; shares are those of people, None without a whole."""

    name: str
    people: int
    events: int
    of_started: float | None
    of_before: float | None
    """None also for leads, which may come at any point of a video."""
    lost: int
    """People who reached the step before and not this one; negative if reports are missing."""
    width: float
    """Of its bar, at most 100."""


@dataclass(frozen=True, slots=True)
class Video:
    """A row of the table of videos; an absent `video` means that the events name none."""

    video: str | None
    title: str | None
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts, and when they were asked for."""

    funnel: Funnel
    at_ms: int


@dataclass(frozen=True, slots=True)
class Course:
    """Viewers and leads over days or hours."""

    viewers: charts.Stack
    leads: charts.Stack
    rows: Sequence[tuple[str, int, int, int]]
    """Each day or hour with its viewers, those who completed, and leads."""

    ticks: Sequence[str]
    """Names below the columns, at equal distances."""


async def read_audience(visit: Visit, chosen: Chosen) -> Context:
    """Read all figures of the chosen days."""
    days = days_of(chosen, visit.now_ms)
    questions = (
        _filter(chosen, days, "video", chosen.limit),
        _filter(chosen, days, "day", DAYS_SHOWN),
        _filter(chosen, days, "hour", 24),
    )
    figures: Context = {}
    with suppress(TimeoutError):
        # Unfinished counts go on, for the next visit.
        async with asyncio.timeout(WAIT_S):
            found = await asyncio.gather(*(_kept(visit, each) for each in questions))
            figures = _figures(visit, days, *found)
    sources = {*visit.admin.rotations.sources, *await visit.admin.store.audience.sources()}
    return {
        "chosen": chosen,
        "periods": PERIODS,
        "dates": days,
        "is_ready": bool(figures),
        "videos_max": VIDEOS_MAX,
        "days_shown": DAYS_SHOWN,
        "wait_s": WAIT_S,
        "sources": sorted(sources),
        "zones": await asyncio.to_thread(zone_names),
        "config_file": visit.admin.config().file,
        **figures,
    }


def _figures(
    visit: Visit, days: Days, by_video: Counted, by_day: Counted, by_hour: Counted
) -> Context:
    videos = by_video.funnel
    return {
        "steps": steps_of(videos.total),
        "anonymous": _anonymous(videos.total),
        "videos": [Video(each.video, each.title, steps_of(each.steps)) for each in videos.groups],
        "left_out": videos.left_out,
        "days": _days(by_day.funnel, days),
        "hours": _hours(by_hour.funnel),
        "counted_ms": by_video.at_ms if by_video.at_ms < visit.now_ms else None,
        "counted_until_ms": videos.counted_until_ms,
    }


def steps_of(counts: Sequence[StepCount]) -> list[Step]:
    """Compare the steps with one another."""
    people = [count.people for count in counts]
    started, most = people[0], max(people, default=0)
    steps = []
    for index, (name, count) in enumerate(zip(NAMES, counts, strict=True)):
        is_lead = count.milestone is None
        before = people[index - 1] if index and not is_lead else 0
        steps.append(
            Step(
                name=name,
                people=count.people,
                events=count.events,
                of_started=count.people / started if started else None,
                of_before=count.people / before if before else None,
                lost=before - count.people if before else 0,
                width=100 * count.people / most if most else 0,
            )
        )
    return steps


def _anonymous(counts: Sequence[StepCount]) -> tuple[int, int]:
    """Return views started and forms sent without an address."""
    return counts[0].anonymous, counts[-1].anonymous


def _days(found: Funnel, days: Days) -> Course:
    by_day = {each.day: each for each in found.groups}
    oldest = found.groups[-1].day if found.groups else None
    names = days.shown(oldest, limit=DAYS_SHOWN)
    ticks = [f"{date.fromisoformat(name):%-d %b}" for name in _spread(names)]
    return _course([(name, by_day.get(name)) for name in names], ticks)


def _hours(found: Funnel) -> Course:
    groups = [(f"{each.hour:02}:00", each) for each in found.groups]
    return _course(groups, _spread([name for name, _ in groups]))


def _spread(names: Sequence[str]) -> list[str]:
    count = min(len(names), TICKS)
    return [names[round(at * (len(names) - 1) / max(count - 1, 1))] for at in range(count)]


def _course(groups: Sequence[tuple[str, Group | None]], ticks: Sequence[str]) -> Course:
    rows = [(name, *_reached(group)) for name, group in groups]
    return Course(
        viewers=charts.stacked([[viewers] for _, viewers, _, _ in rows], ["info"]),
        leads=charts.stacked([[leads] for *_, leads in rows], ["ok"]),
        rows=rows,
        ticks=ticks,
    )


def _reached(group: Group | None) -> tuple[int, int, int]:
    if group is None:
        return 0, 0, 0
    return group.steps[0].people, group.steps[-2].people, group.steps[-1].people


async def _kept(visit: Visit, asked: AudienceFilter) -> Counted:
    async def count() -> Counted:
        return Counted(await visit.run(show_audience, asked), visit.now_ms)

    return await visit.slow.get(asked, count)


async def _counted(visit: Visit, chosen: Chosen, by: Grouping, limit: int = GROUPS_MAX) -> Funnel:
    asked = _filter(chosen, days_of(chosen, visit.now_ms), by, limit)
    found: Funnel = await visit.run(show_audience, asked)
    return found


def _filter(chosen: Chosen, days: Days, by: Grouping, limit: int) -> AudienceFilter:
    zone = chosen.zone if by in ("day", "hour") else None
    return AudienceFilter(
        by=by, limit=limit, zone=zone, source=chosen.source, video=chosen.video, **days.times
    )


async def export_videos(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of videos."""
    found = await _counted(visit, chosen, "video")
    names = [[visit.text(each.title), visit.text(each.video)] for each in found.groups]
    return _table(["title", "video"], names, found)


async def export_days(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of days, newest first."""
    found = await _counted(visit, chosen, "day")
    return _table(["day"], [[each.day] for each in found.groups], found)


async def export_hours(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of hours of the day."""
    found = await _counted(visit, chosen, "hour")
    return _table(["hour"], [[each.hour] for each in found.groups], found)


async def export_funnel(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the steps in total."""
    found = await _counted(visit, chosen, "video", 1)
    head = ["step", "people", "events", "events without an address"]
    rows = zip(COLUMNS, found.total, strict=True)
    return [head, *([name, each.people, each.events, each.anonymous] for name, each in rows)]


def _table(
    heads: Sequence[str], names: Sequence[Sequence[object]], found: Funnel
) -> list[Sequence[object]]:
    """Build the table that `relay audience --csv` prints."""
    units = ("people", "events")
    table: list[Sequence[object]] = [
        [*heads, *(f"{step} {unit}" for unit in units for step in COLUMNS)]
    ]
    for cells, group in zip(names, found.groups, strict=True):
        table.append([*cells, *(getattr(step, unit) for unit in units for step in group.steps)])
    return table


SECTION = Section(
    name="Audience",
    path="/audience",
    key="a",
    views=(
        # Without topics: its figures are read at leisure, and cost more than a list.
        View(path="/audience", title="Audience", template="audience.html", read=read_audience),
    ),
    downloads=(
        Download(path="/audience/videos.csv", file="videos.csv", read=export_videos),
        Download(path="/audience/days.csv", file="days.csv", read=export_days),
        Download(path="/audience/hours.csv", file="hours.csv", read=export_hours),
        Download(path="/audience/funnel.csv", file="funnel.csv", read=export_funnel),
    ),
)
