"""Events of the same person and of the same video in SQL, from the rows of the audience.

Other events of a video, such as `video.ready`, are only in the bodies, so they are not found.
"""

from typing import Any

from relay.core.event import LEAD, engagement
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.driver import Database, Row
from relay.store.postgres.text import storable
from relay.store.related import NEWEST_MAX, TOTAL_MAX, Related, RelatedEvent, RelatedEvents
from relay.store.rows import ORIGINAL, document_of

_COUNTED = "SELECT person, video FROM relay.audience WHERE event = %s"
_BODY = "SELECT kind, body FROM relay.events WHERE seq = %s"
_NUMBER = "SELECT number FROM relay.videos WHERE id = %s"
_VIDEO = "SELECT id, title FROM relay.videos WHERE number = %s"
# No event before the oldest is stored, so the walk ends there, or where it would take too long: an
# index on people would double what the writer does for a view.
_FLOOR = f"""
SELECT greatest(
    (SELECT min(seq) FROM relay.events),
    (SELECT coalesce(max(event), 0) FROM relay.audience) - {NEWEST_MAX}
)
"""
_NEWEST = f"""
SELECT e.seq, e.source, e.id, e.kind, e.received_at, nullif(a.step, '{LEAD}'), v.id, v.title,
    e.reconstructed
FROM relay.audience a JOIN relay.events e ON e.seq = a.event
LEFT JOIN relay.videos v ON v.number = a.video
WHERE a.{{column}} = %s AND a.event != %s AND a.event >= %s
ORDER BY a.event DESC LIMIT %s
"""
_TOTAL = f"""
SELECT count(*) FROM (
    SELECT 1 FROM relay.audience WHERE {{column}} = %s AND event != %s AND event >= %s
    LIMIT {TOTAL_MAX + 1}
) AS others
"""


def related(db: Database, seq: int, digests: PersonDigests, *, limit: int) -> Related | None:
    """Return the newest views and leads that are related to an event; None if it does not exist."""
    stored = db.execute(_BODY, (seq,)).fetchone()
    if stored is None:
        return None
    counted = db.execute(_COUNTED, (seq,)).fetchone()
    person, video = counted or _of_body(db, stored, digests)
    (floor,) = db.execute(_FLOOR).fetchall()[0]
    video_id, title = db.execute(_VIDEO, (video,)).fetchone() or (None, None)

    def having(column: str, value: int, name: str) -> RelatedEvents:
        values = (value, seq, floor)
        rows = db.execute(_NEWEST.format(column=column), (*values, limit)).fetchall()
        (total,) = db.execute(_TOTAL.format(column=column), values).fetchall()[0]
        events = [RelatedEvent(*(*row, mark != ORIGINAL)) for *row, mark in rows]
        return RelatedEvents(name, events, total)

    return Related(
        person=None if person is None else having("person", person, f"{person:016x}"),
        video=None if video_id is None else having("video", video, video_id),
        title=title,
    )


def _of_body(db: Database, stored: Row, digests: PersonDigests) -> tuple[Any, Any]:
    """Return the person and the number of the video of an event that is no view or lead.

    Also of one that is not counted yet.
    """
    kind, body = stored
    document = document_of(body)
    if document is None:
        return None, None
    _, video, _, person = engagement(kind, document)
    named = None if video is None else db.execute(_NUMBER, (storable(video),)).fetchone()
    (number,) = named or (None,)
    return None if person is None else digests.number(person), number
