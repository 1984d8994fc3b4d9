"""Audience: viewers by milestone, and leads, for marketing."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import date

import msgspec

from relay.admin.api.audience import AudienceFilter, show_audience
from relay.admin.page import charts
from relay.admin.page.filter_bar import Field, filter_bar, same
from relay.admin.page.view import PageView, Section
from relay.admin.page.views.audience import files
from relay.admin.page.views.audience.range import (
    PERIODS,
    VIDEOS_MAX,
    AudienceForm,
    Days,
    days_of,
    filter_of,
    zone_names,
)
from relay.admin.page.visit import Context, PageVisit
from relay.store.audience import Funnel, Group, StepCount

DAYS_SHOWN = 92

WAIT_S = 5
"""Time that a visitor waits for the counts of a large store."""

_STEPS = ("Started", "25 %", "50 %", "75 %", "Completed", "Leads")


class FunnelStep(msgspec.Struct, frozen=True):
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


def steps_of(counts: Sequence[StepCount]) -> list[FunnelStep]:
    """Compare the steps with one another."""
    people = [count.people for count in counts]
    started, most = people[0], max(people, default=0)
    steps = []
    for index, (name, count) in enumerate(zip(_STEPS, counts, strict=True)):
        is_lead = count.milestone is None
        before = people[index - 1] if index and not is_lead else 0
        steps.append(
            FunnelStep(
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


class VideoRow(msgspec.Struct, frozen=True):
    """A row of the table of videos; an absent `video` means that the events name none."""

    video: str | None
    title: str | None
    steps: Sequence[FunnelStep]


class CountedFunnel(msgspec.Struct, frozen=True):
    """Counts, and when they were asked for."""

    funnel: Funnel
    at_ms: int


class Course(msgspec.Struct, frozen=True):
    """Viewers and leads over days or hours."""

    viewers: charts.Stack
    leads: charts.Stack
    rows: Sequence[tuple[str, int, int, int]]
    """Each day or hour with its viewers, those who completed, and leads."""

    ticks: Sequence[str]


async def read_audience(visit: PageVisit, form: AudienceForm) -> Context:
    """Read all figures of the chosen days."""
    days = days_of(form, visit.now_ms)
    questions = (
        filter_of(form, days, "video", form.limit),
        filter_of(form, days, "day", DAYS_SHOWN),
        filter_of(form, days, "hour", 24),
    )
    figures: Context = {}
    with suppress(TimeoutError):
        # Unfinished counts go on, for the next visit.
        async with asyncio.timeout(WAIT_S):
            counts = await asyncio.gather(*(_kept(visit, each) for each in questions))
            figures = {
                **_figures(visit, days, *counts),
                "is_first": not (_events(counts[0]) or _events(await _ever(visit))),
            }
    kept = {} if form.since or form.until else {"period": form.period}
    return {
        "form": form,
        "filters": filter_bar(visit, await _fields(visit, form, figures.get("videos", ())), kept),
        "periods": PERIODS,
        "dates": days,
        "is_ready": bool(figures),
        "videos_max": VIDEOS_MAX,
        "days_shown": DAYS_SHOWN,
        "wait_s": WAIT_S,
        "config_file": visit.admin.config().file,
        **figures,
    }


async def _fields(
    visit: PageVisit, form: AudienceForm, videos: Sequence[VideoRow]
) -> Sequence[Field]:
    """Return the fields of the filter bar; the chosen video is named by its title."""
    titles = {each.video: each.title for each in videos}
    sources = {*visit.admin.sources, *await visit.admin.store.audience.sources()}
    zones = await asyncio.to_thread(zone_names)
    since, until = (None if day is None else str(day) for day in (form.since, form.until))
    return (
        Field(name="since", label="From", value=since, type="date"),
        Field(name="until", label="To", value=until, type="date"),
        Field(name="zone", label="Time zone", value=form.zone, default="UTC", suggestions=zones),
        Field(name="source", label="Source", value=form.source, choices=same(sorted(sources))),
        Field(
            name="video",
            label="Video",
            value=form.video,
            words=titles.get(form.video),
            hint="its id",
        ),
    )


def _ever(visit: PageVisit) -> Awaitable[CountedFunnel]:
    return _kept(visit, AudienceFilter(by="source", limit=1))


def _events(counted: CountedFunnel) -> int:
    return sum(step.events for step in counted.funnel.total)


def _figures(
    visit: PageVisit,
    days: Days,
    by_video: CountedFunnel,
    by_day: CountedFunnel,
    by_hour: CountedFunnel,
) -> Context:
    videos = by_video.funnel
    return {
        "steps": steps_of(videos.total),
        "anonymous": _anonymous(videos.total),
        "videos": [
            VideoRow(each.video, each.title, steps_of(each.steps)) for each in videos.groups
        ],
        "left_out": videos.left_out,
        "days": _days(by_day.funnel, days),
        "hours": _hours(by_hour.funnel),
        "counted_ms": by_video.at_ms if by_video.at_ms < visit.now_ms else None,
        "counted_until_ms": videos.counted_until_ms,
    }


def _anonymous(counts: Sequence[StepCount]) -> tuple[int, int]:
    """Return views started and forms sent without an address."""
    return counts[0].anonymous, counts[-1].anonymous


def _days(funnel: Funnel, days: Days) -> Course:
    by_day = {each.day: each for each in funnel.groups}
    oldest = funnel.groups[-1].day if funnel.groups else None
    names = days.shown(oldest, limit=DAYS_SHOWN)
    ticks = charts.ticks([f"{date.fromisoformat(name):%-d %b}" for name in names])
    return _course([(name, by_day.get(name)) for name in names], ticks)


def _hours(funnel: Funnel) -> Course:
    groups = [(f"{each.hour:02}:00", each) for each in funnel.groups]
    return _course(groups, charts.ticks([name for name, _ in groups]))


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


async def _kept(visit: PageVisit, query: AudienceFilter) -> CountedFunnel:
    async def count() -> CountedFunnel:
        return CountedFunnel(await visit.run(show_audience, query), visit.now_ms)

    return await visit.slow.get(query, count)


SECTION = Section(
    name="Audience",
    path="/audience",
    key="a",
    routes=(
        # Without topics: its figures are read at leisure, and cost more than a list.
        PageView("/audience", read_audience, "Audience", "audience.html"),
        *files.ROUTES,
    ),
)
