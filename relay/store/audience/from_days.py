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
from relay.store.audience.counts import Counts
from relay.store.audience.days import SLOT_MS, Day, Key
from relay.store.audience.raw_rows import edge_days, raw_days, span_of
from relay.store.audience.sets import (
    of_video,
    pair,
    people_of,
    slots_of,
    videos_of,
    viewers_of,
)
from relay.store.audience.span import Span
from relay.store.audience.tables import FunnelTables, Row
from relay.store.audience.unions import Part, PeopleUnions
from relay.store.audience.videos import Videos
from relay.store.audience.zones import day_of, is_aligned, is_constant


def count(tables: FunnelTables, question: AudienceQuery) -> Counts | None:
    """Count within the caller's snapshot; None where all rows have to be read.

    Raises Damaged.
    """
    span = span_of(tables, question)
    if span is None:
        return None
    if question.video is not None:
        return _of_one_video(tables, question, span)
    if question.by == "video":
        return _of_videos(tables, question, span)
    return _of_all(tables, question, span)


def _of_all(tables: FunnelTables, question: AudienceQuery, span: Span) -> Counts | None:
    if not _suits(question, span, SLOT_MS):
        return None
    halves = span.whole(SLOT_MS)
    raw = raw_days(tables, question, span.around(halves))
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


def _whole_days(tables: FunnelTables, question: AudienceQuery, days: Span) -> Iterator[Part]:
    if question.by == "hour":
        yield from _half_hours(tables.weeks("half_hours", days, question.source), days)
        return
    read = tables.days if question.by == "day" else tables.weeks
    rows = read("people, events, anonymous", days, question.source)
    for day_ms, source, step, people, events, anonymous in rows:
        yield Part(day_ms, source, step, people_of(people), events, anonymous)


def _half_hours(rows: Iterable[Row], halves: Span) -> Iterator[Part]:
    for day_ms, source, step, slots in rows:
        for at, counts, people in slots_of(slots):
            at_ms = day_ms + at * SLOT_MS
            if halves.since_ms <= at_ms < halves.until_ms:
                yield Part(at_ms, source, step, BitMap.deserialize(people), *counts)


def _slots(key: Key, day: Day) -> Iterator[Part]:
    for at, slot in day.slots.items():
        at_ms = key.day_ms + at * SLOT_MS
        yield Part(at_ms, key.source, key.step, slot.people, slot.events, slot.anonymous)


def _of_one_video(tables: FunnelTables, question: AudienceQuery, span: Span) -> Counts | None:
    video = None if question.video is None else tables.video(question.video)
    if video is None or not _suits(question, span, SLOT_MS):
        return None
    # Half hours are stored over all videos only.
    days = span.whole(DAY_MS) if _suits(question, span, DAY_MS) else span.end()
    raw = raw_days(tables, question, span.around(days), video=video)
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
            parts.append(Part(day_ms, source, step, pairs, *counts))
    return _piled(question, parts, video)


def _of_videos(tables: FunnelTables, question: AudienceQuery, span: Span) -> Counts | None:
    days = span.whole(DAY_MS)
    edges = edge_days(tables, question, span.around(days))
    raw = raw_days(tables, question, span.around(span))
    if edges is None or raw is None:
        return None
    videos = Videos()
    for key, day in (*edges, *raw.items()):
        videos.add(Part(*key, day.people, *day.counts()), day.viewers, day.videos)
    columns = "people, events, anonymous, viewers, videos"
    rows = tables.weeks(columns, days, question.source)
    for day_ms, source, step, people, events, anonymous, viewers, counts in rows:
        part = Part(day_ms, source, step, people_of(people), events, anonymous)
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


def _piled(question: AudienceQuery, parts: Iterable[Part], video: int | None = None) -> Counts:
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
