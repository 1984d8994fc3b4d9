"""The funnel's counts from the audience by day, and from the few rows that are not in it.

It joins sets of people, so that each counts once over any range of days. That takes milliseconds
for a million views; a count of all rows takes seconds.
"""

from collections.abc import Hashable, Iterable, Iterator
from datetime import datetime
from functools import cache

from pyroaring import BitMap, BitMap64

from relay.core.minutes import DAY_MS
from relay.store.audience import AudienceQuery
from relay.store.audience.counts import Counts, GroupSet, PeopleUnions, VideoUnions
from relay.store.audience.days import SLOT_MS, WEEK_MS, Day, Key, View, days_of
from relay.store.audience.reads import AudienceReads, RawView, RowRange, Span
from relay.store.audience.sets import (
    NUMBER_MAX,
    of_video,
    pair,
    people_of,
    slots_of,
    videos_of,
    viewers_of,
)
from relay.store.audience.zones import day_of, is_aligned, is_constant
from relay.store.rows import Row

ROWS_MAX = 50_000
"""Rows outside of whole units from which on it is faster to count all rows in SQL."""


def count(tables: AudienceReads, question: AudienceQuery) -> Counts | None:
    """Count within the caller's snapshot; None where all rows have to be read.

    Raises Damaged.
    """
    span = _span_of(tables, question)
    if span is None:
        return None
    if question.video is not None:
        return _of_one_video(tables, question, span)
    if question.by == "video":
        return _of_videos(tables, question, span)
    return _of_all(tables, question, span)


def _of_all(tables: AudienceReads, question: AudienceQuery, span: Span) -> Counts | None:
    if not _suits(question, span, SLOT_MS):
        return None
    halves = span.whole(SLOT_MS)
    raw = _raw_days(tables, question, span.around(halves))
    if raw is None:
        return None
    days = halves.whole(DAY_MS) if _suits(question, span, DAY_MS) else halves.end()
    parts = [*_whole_days(tables, question, days)]
    for edge in halves.around(days):
        around = Span(edge.since_ms - DAY_MS + 1, edge.until_ms)
        parts += _half_hours(tables.days("half_hours", around, question.source), edge)
    for key, day in raw.items():
        parts += _slots(key, day)
    return _piled(question, parts)


def _whole_days(tables: AudienceReads, question: AudienceQuery, days: Span) -> Iterator[GroupSet]:
    if question.by == "hour":
        yield from _half_hours(tables.weeks("half_hours", days, question.source), days)
        return
    read = tables.days if question.by == "day" else tables.weeks
    rows = read("people, events, anonymous", days, question.source)
    for day_ms, source, step, people, events, anonymous in rows:
        yield GroupSet(day_ms, source, step, people_of(people), events, anonymous)


def _half_hours(rows: Iterable[Row], halves: Span) -> Iterator[GroupSet]:
    for day_ms, source, step, slots in rows:
        for at, counts, people in slots_of(slots):
            at_ms = day_ms + at * SLOT_MS
            if halves.since_ms <= at_ms < halves.until_ms:
                yield GroupSet(at_ms, source, step, BitMap.deserialize(people), *counts)


def _slots(key: Key, day: Day) -> Iterator[GroupSet]:
    for at, slot in day.slots.items():
        at_ms = key.day_ms + at * SLOT_MS
        yield GroupSet(at_ms, key.source, key.step, slot.people, slot.events, slot.anonymous)


def _of_one_video(tables: AudienceReads, question: AudienceQuery, span: Span) -> Counts | None:
    video = None if question.video is None else tables.video(question.video)
    if video is None or not _suits(question, span, SLOT_MS):
        return None
    # Half hours are stored over all videos only.
    days = span.whole(DAY_MS) if _suits(question, span, DAY_MS) else span.end()
    raw = _raw_days(tables, question, span.around(days), video=video)
    if raw is None:
        return None
    parts = []
    for key, day in raw.items():
        for part in _slots(key, day):
            pairs = BitMap64([pair(video, person) for person in part.people])
            parts.append(part._replace(people=pairs))
    read = tables.days if question.by == "day" else tables.weeks
    rows = read("viewers, videos", days, question.source)
    for day_ms, source, step, viewers, videos in rows:
        counts = videos_of(videos).get(video)
        if counts is not None:
            pairs = of_video(viewers_of(viewers), video)
            parts.append(GroupSet(day_ms, source, step, pairs, *counts))
    return _piled(question, parts, video)


def _of_videos(tables: AudienceReads, question: AudienceQuery, span: Span) -> Counts | None:
    days = span.whole(DAY_MS)
    edges = _edge_days(tables, question, span.around(days))
    raw = _raw_days(tables, question, span.around(span))
    if edges is None or raw is None:
        return None
    videos = VideoUnions()
    for key, day in (*edges, *raw.items()):
        videos.add(GroupSet(*key, day.people, *day.counts()), day.viewers, day.videos)
    rows = tables.weeks("people, events, anonymous, viewers, videos", days, question.source)
    for day_ms, source, step, people, events, anonymous, viewers, counts in rows:
        part = GroupSet(day_ms, source, step, people_of(people), events, anonymous)
        videos.add(part, viewers_of(viewers), videos_of(counts))
    return videos.counts()


def _suits(question: AudienceQuery, span: Span, unit_ms: int) -> bool:
    """Whether whole units can be read at once, or half hours at the same time of several days."""
    if question.by in ("video", "source"):
        return True
    times = span.since_ms, span.until_ms
    if question.by == "hour" and unit_ms > SLOT_MS:
        return question.video is None and is_constant(*times, question.zone)
    return is_aligned(*times, question.zone, unit_ms=unit_ms)


def _piled(question: AudienceQuery, parts: Iterable[GroupSet], video: int | None = None) -> Counts:
    @cache
    def group_of(at_ms: int) -> Hashable:
        if question.by == "hour":
            return datetime.fromtimestamp(at_ms / 1000, question.zone).hour
        return day_of(at_ms, question.zone)[0]

    unions = PeopleUnions()
    for part in parts:
        match question.by:
            case "video":
                unions.add(video, part)
            case "source":
                unions.add(part.source, part)
            case "day" | "hour":
                unions.add(group_of(part.at_ms), part)
    return unions.counts()


def _span_of(tables: AudienceReads, question: AudienceQuery) -> Span | None:
    """Return the question's time, at most the weeks that have an audience; None without any."""
    extent = tables.extent()
    if extent is None:
        return None
    first_ms, last_ms = extent
    since_ms, until_ms = first_ms // WEEK_MS * WEEK_MS, (last_ms // WEEK_MS + 1) * WEEK_MS
    if question.since_ms is not None:
        since_ms = max(since_ms, question.since_ms)
    if question.until_ms is not None:
        until_ms = min(until_ms, question.until_ms)
    return Span(since_ms, until_ms) if since_ms < until_ms else None


def _raw_days(
    tables: AudienceReads,
    question: AudienceQuery,
    edges: tuple[Span, Span],
    *,
    video: int | None = None,
) -> dict[Key, Day] | None:
    """Count the rows of both edges of a time, and all of it that no day has yet.

    None if they are too many. A person without a number gets one for this answer.
    """
    source = question.source
    before, after = edges
    time = Span(before.since_ms, after.until_ms)
    later = RowRange(span=time, is_rolled_up=False, source=source, video=video)
    views: list[RawView] = []
    for rows in (*_rolled_up(edges, source, video), later):
        limit = ROWS_MAX + 1 - len(views)
        if tables.count(rows, limit=limit) >= limit:
            return None
        views += tables.raw_views(rows)
    return days_of(_numbered(views))


def _edge_days(
    tables: AudienceReads, question: AudienceQuery, edges: tuple[Span, Span]
) -> list[tuple[Key, Day]] | None:
    """Count the rows of both edges that a day has, without half hours; None if they are too many.

    SQL makes lists of them, because a partial day can have many rows.
    """
    parts: list[tuple[Key, Day]] = []
    for rows in _rolled_up(edges, question.source):
        if tables.count(rows, limit=ROWS_MAX + 1) > ROWS_MAX:
            return None
        for source, step, pairs, anonymous in tables.pairs(rows):
            day = Day()
            day.add_pairs(pairs, anonymous)
            parts.append((Key(rows.span.since_ms, source, step), day))
    return parts


def _rolled_up(
    edges: tuple[Span, Span], source: str | None, video: int | None = None
) -> list[RowRange]:
    return [
        RowRange(span=edge, is_rolled_up=True, source=source, video=video) for edge in edges if edge
    ]


def _numbered(views: Iterable[RawView]) -> Iterator[View]:
    numbers: dict[int, int] = {}
    for view, person in views:
        if view.person is not None or person is None:
            yield view
        else:
            yield view._replace(person=numbers.setdefault(person, NUMBER_MAX - len(numbers)))
