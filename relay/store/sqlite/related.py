"""Events of the same person and of the same video in SQL, from the rows of the audience.

Other events of a video, such as `video.ready`, are only in the bodies, so they are not found.
"""

from typing import Any

from relay.core.event import LEAD, engagement
from relay.store.keyed_digests import PersonDigests
from relay.store.related import NEWEST_MAX, TOTAL_MAX, Related, RelatedEvent, RelatedEvents
from relay.store.rows import ORIGINAL, document_of
from relay.store.sqlite.driver import sqlite3

_COUNTED = "SELECT person, video FROM audience WHERE event = ?"
_STORED = "SELECT 1 FROM events WHERE seq = ?"
_BODY = "SELECT kind, body FROM events WHERE seq = ?"
_NUMBER = "SELECT number FROM videos WHERE id = ?"
_VIDEO = "SELECT id, title FROM videos WHERE number = ?"
# No event before the oldest is stored, so the walk ends there, or where it would take too long: an
# index on people would double what the writer does for a view.
_FLOOR = f"""
SELECT max(
    (SELECT min(seq) FROM events),
    (SELECT coalesce(max(event), 0) FROM audience) - {NEWEST_MAX}
)
"""
_NEWEST = f"""
SELECT e.seq, e.source, e.id, e.kind, e.received_at, nullif(a.step, '{LEAD}'), v.id, v.title,
    e.reconstructed
FROM audience a CROSS JOIN events e ON e.seq = a.event LEFT JOIN videos v ON v.number = a.video
WHERE a.{{column}} = ?1 AND a.event >= ?3 AND a.event != ?2
ORDER BY a.event DESC LIMIT ?4
"""
_TOTAL = f"""
SELECT count(*) FROM (
    SELECT 1 FROM audience WHERE {{column}} = ? AND event != ? AND event >= ? LIMIT {TOTAL_MAX + 1}
)
"""


def related(
    db: sqlite3.Connection, seq: int, digests: PersonDigests, *, limit: int
) -> Related | None:
    """Return the newest views and leads that are related to an event; None if it does not exist."""
    if db.execute(_STORED, (seq,)).fetchone() is None:
        return None
    person, video = db.execute(_COUNTED, (seq,)).fetchone() or _of_body(db, seq, digests)
    (floor,) = db.execute(_FLOOR).fetchone()
    video_id, title = db.execute(_VIDEO, (video,)).fetchone() or (None, None)

    def having(column: str, value: int, name: str) -> RelatedEvents:
        rows = db.execute(_NEWEST.format(column=column), (value, seq, floor, limit))
        (total,) = db.execute(_TOTAL.format(column=column), (value, seq, floor)).fetchone()
        events = [RelatedEvent(*(*row, mark != ORIGINAL)) for *row, mark in rows]
        return RelatedEvents(name, events, total)

    return Related(
        person=None if person is None else having("person", person, f"{person:016x}"),
        video=None if video_id is None else having("video", video, video_id),
        title=title,
    )


def _of_body(db: sqlite3.Connection, seq: int, digests: PersonDigests) -> tuple[Any, Any]:
    """Return the person and the number of the video of an event that is no view or lead.

    Also of one that is not counted yet.
    """
    kind, body = db.execute(_BODY, (seq,)).fetchone()
    document = document_of(body)
    if document is None:
        return None, None
    _, video, _, person = engagement(kind, document)
    (number,) = db.execute(_NUMBER, (video,)).fetchone() or (None,)
    return None if person is None else digests.number(person), number
