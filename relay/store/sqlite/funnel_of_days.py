"""The funnel's counts from the audience by day, and from the few rows that are not in it.

It joins sets of people, so that each counts once over any range of days.
"""

from collections.abc import Hashable, Iterable, Iterator
from datetime import datetime
from functools import cache

from pyroaring import BitMap, BitMap64

from relay.core.minutes import DAY_MS
from relay.store.audience import AudienceQuery
from relay.store.conditions import all_of
from relay.store.sqlite.audience_days import SLOT_MS, Day, Key
from relay.store.sqlite.audience_sets import (
    of_video,
    pair,
    people_of,
    slots_of,
    videos_of,
    viewers_of,
)
from relay.store.sqlite.audience_weeks import WEEKS_AND_DAYS
from relay.store.sqlite.driver import Row, sqlite3
from relay.store.sqlite.funnel_counts import Counts
from relay.store.sqlite.funnel_piles import Part, Piles
from relay.store.sqlite.funnel_span import Span, edge_days, loose_days, span_of
from relay.store.sqlite.funnel_videos import Videos
from relay.store.sqlite.zones import day_of, is_aligned, is_constant

_VIDEO = "SELECT number FROM videos WHERE id = ?"
_OF_DAYS = "SELECT day, source, step, {columns} FROM audience_days WHERE {fits}"


def count(db: sqlite3.Connection, question: AudienceQuery) -> Counts | None:
    """Count within the caller's snapshot; None where all rows have to be read.

    Raises Damaged.
    """
    span = span_of(db, question)
    if span is None:
        return None
    if question.video is not None:
        return _of_one_video(db, question, span)
    if question.by == "video":
        return _of_videos(db, question, span)
    return _of_all(db, question, span)


def _of_all(db: sqlite3.Connection, question: AudienceQuery, span: Span) -> Counts | None:
    if not _suits(question, span, SLOT_MS):
        return None
    halves = span.whole(SLOT_MS)
    loose = loose_days(db, question, span.around(halves))
    if loose is None:
        return None
    days = halves.whole(DAY_MS) if _suits(question, span, DAY_MS) else halves.end()
    parts = [*_whole_days(db, question, days)]
    for edge in halves.around(days):
        around = Span(edge.since_ms - DAY_MS + 1, edge.until_ms)
        parts += _half_hours(_days(db, "half_hours", question, around), edge)
    for key, day in loose.items():
        parts += _slots(key, day)
    return _piled(question, parts)


def _whole_days(db: sqlite3.Connection, question: AudienceQuery, days: Span) -> Iterator[Part]:
    if question.by == "hour":
        yield from _half_hours(_weeks(db, "half_hours", question, days), days)
        return
    read = _days if question.by == "day" else _weeks
    rows = read(db, "people, events, anonymous", question, days)
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


def _of_one_video(db: sqlite3.Connection, question: AudienceQuery, span: Span) -> Counts | None:
    (video,) = db.execute(_VIDEO, (question.video,)).fetchone() or (None,)
    if video is None or not _suits(question, span, SLOT_MS):
        return None
    # Half hours are stored over all videos only.
    days = span.whole(DAY_MS) if _suits(question, span, DAY_MS) else span.end()
    loose = loose_days(db, question, span.around(days), video=video)
    if loose is None:
        return None
    parts = []
    for key, day in loose.items():
        for part in _slots(key, day):
            pairs = BitMap64([pair(video, person) for person in part.people])
            parts.append(part._replace(people=pairs))
    read = _days if question.by == "day" else _weeks
    for day_ms, source, step, viewers, videos in read(db, "viewers, videos", question, days):
        counts = videos_of(videos).get(video)
        if counts is not None:
            pairs = of_video(viewers_of(viewers), video)
            parts.append(Part(day_ms, source, step, pairs, *counts))
    return _piled(question, parts, video)


def _of_videos(db: sqlite3.Connection, question: AudienceQuery, span: Span) -> Counts | None:
    days = span.whole(DAY_MS)
    edges = edge_days(db, question, span.around(days))
    loose = loose_days(db, question, span.around(span))
    if edges is None or loose is None:
        return None
    videos = Videos()
    for key, day in (*edges, *loose.items()):
        videos.add(Part(*key, day.people, *day.counts()), day.viewers, day.videos)
    columns = "people, events, anonymous, viewers, videos"
    rows = _weeks(db, columns, question, days)
    for day_ms, source, step, people, events, anonymous, viewers, counts in rows:
        part = Part(day_ms, source, step, people_of(people), events, anonymous)
        videos.add(part, viewers_of(viewers), videos_of(counts))
    return videos.counts()


def _weeks(
    db: sqlite3.Connection, columns: str, question: AudienceQuery, days: Span
) -> Iterable[Row]:
    """Read the weeks of a time, and its other days."""
    values = {"since": days.since_ms, "until": days.until_ms, "source": question.source}
    return db.execute(WEEKS_AND_DAYS.format(columns=columns), values)


def _days(
    db: sqlite3.Connection, columns: str, question: AudienceQuery, days: Span
) -> Iterable[Row]:
    where, values = all_of(days.fits("day"), ("source = ?", [question.source]))
    return db.execute(_OF_DAYS.format(columns=columns, fits=where), values)


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

    piles = Piles()
    for part in parts:
        match question.by:
            case "video":
                piles.add(video, part)
            case "source":
                piles.add(part.source, part)
            case "day" | "hour":
                piles.add(group_of(part.at_ms), part)
    return piles.counts()
