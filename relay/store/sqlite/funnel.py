"""Queries of the audience in SQL: people by step of the funnel."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from relay.store.audience import AudienceQuery, Funnel, Group, Grouping
from relay.store.sqlite import funnel_of_days, funnel_of_rows
from relay.store.sqlite.audience_sets import Damaged
from relay.store.sqlite.conditions import COUNTED_TO
from relay.store.sqlite.driver import snapshot, sqlite3
from relay.store.sqlite.funnel_counts import Counts, listed

_VIDEOS = "SELECT number, id, title FROM videos WHERE number IN (SELECT value FROM json_each(?))"
_UNCOUNTED = f"SELECT received_at FROM events WHERE seq > {COUNTED_TO} ORDER BY seq LIMIT 1"


def ask(db: sqlite3.Connection, question: AudienceQuery) -> Funnel | None:
    """Count within one snapshot of the audience; None if a stored day is damaged."""
    with snapshot(db):
        try:
            counts = funnel_of_days.count(db, question) or funnel_of_rows.count(db, question)
        except Damaged:
            return None
        keys = _ordered(question.by, counts)
        names = _videos(db, keys[: question.limit]) if question.by == "video" else {}
        return Funnel(
            groups=[_group(question.by, key, counts, names) for key in keys[: question.limit]],
            total=listed(counts.total),
            left_out=_left_out(question, len(keys)),
            counted_until_ms=oldest_uncounted(db),
        )


def oldest_uncounted(db: sqlite3.Connection) -> int | None:
    """Return the receipt of the first uncounted event; None if all are counted."""
    row = db.execute(_UNCOUNTED).fetchone()
    return None if row is None else int(row[0])


def _ordered(by: Grouping, counts: Counts) -> list[Any]:
    match by:
        case "video" | "source":
            return counts.ranked()
        case "hour":
            return list(range(24)) if counts.most else []
        case "day":
            return sorted(counts.most, reverse=True)


def _left_out(question: AudienceQuery, groups: int) -> int:
    left_out = max(0, groups - question.limit)
    return min(left_out, 1) if question.by == "day" else left_out


def _videos(db: sqlite3.Connection, numbers: list[int | None]) -> Mapping[int, Sequence[Any]]:
    rows = db.execute(_VIDEOS, (orjson.dumps(numbers).decode(),))
    return {number: names for number, *names in rows}


def _group(by: Grouping, key: Any, counts: Counts, names: Mapping[int, Sequence[Any]]) -> Group:
    steps = listed(counts.steps(key) if key in counts.most else {})
    match by:
        case "video":
            return Group(steps, *names.get(key, ()))
        case "hour":
            return Group(steps, hour=key)
        case "day":
            return Group(steps, day=key)
        case "source":
            return Group(steps, source=key)
