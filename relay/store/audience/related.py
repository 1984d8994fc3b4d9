"""Events that concern the same person or the same video as another, from the audience's rows.

Other events of a video, such as `video.ready`, are only in the bodies, so they are not found.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from relay.core.event import LEAD, engagement
from relay.store.keyed_digests import PersonDigests
from relay.store.rows import ORIGINAL, document_of
from relay.store.sql import Database, Sql

TOTAL_MAX = 1000

NEWEST_MAX = 200_000
"""Newest events among which related ones are found."""


class RelatedEvent(msgspec.Struct, frozen=True):
    """One view or lead whose event is still stored."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    milestone: str | None
    """None for leads."""
    video: str | None
    title: str | None
    """The video's latest title."""
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


class RelatedEvents(msgspec.Struct, frozen=True):
    """Events with one value in common, without the event that was asked about."""

    name: str
    """Id of the video, or keyed digest of the person's address, as 16 hex digits."""
    events: Sequence[RelatedEvent]
    """Newest first."""
    total: int
    """Number of views and leads among the newest events; one above `TOTAL_MAX` for more."""


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """Views and leads of the same person and of the same video."""

    person: RelatedEvents | None
    """None for an event without an address, or whose body and person were removed."""
    video: RelatedEvents | None
    title: str | None
    """The video's latest title."""


_COUNTED = Sql("SELECT person, video FROM main.audience WHERE event = :event")
_STORED = Sql("SELECT 1 FROM main.events WHERE seq = :event")
_BODY = Sql("SELECT kind, body FROM main.events WHERE seq = :event")
_NUMBER = Sql("SELECT number FROM main.videos WHERE id = :video_id")
_VIDEO = Sql("SELECT id, title FROM main.videos WHERE number = :video")
_ENDS = Sql("""
SELECT (SELECT min(seq) FROM main.events), (SELECT max(event) FROM main.audience)
""")
_NEWEST = {
    column: Sql(f"""
SELECT e.seq, e.source, e.id, e.kind, e.received_at, nullif(a.step, '{LEAD}'), v.id, v.title,
    e.reconstructed
FROM main.audience AS a CROSS JOIN main.events AS e LEFT JOIN main.videos AS v ON v.number = a.video
WHERE e.seq = a.event AND a.{column} = :value AND a.event >= :floor AND a.event <> :event
ORDER BY a.event DESC LIMIT :limit
""")
    for column in ("person", "video")
}
_TOTAL = {
    column: Sql(f"""
SELECT count(*) FROM (
    SELECT 1 FROM main.audience WHERE {column} = :value AND event <> :event AND event >= :floor
    LIMIT {TOTAL_MAX + 1}
) AS others
""")
    for column in ("person", "video")
}


def related(db: Database, seq: int, digests: PersonDigests, *, limit: int) -> Related | None:
    """Return the newest views and leads that are related to an event; None if it does not exist."""
    event = {"event": seq}
    if db.execute(_STORED, event).fetchone() is None:
        return None
    person, video = db.execute(_COUNTED, event).fetchone() or _of_body(db, seq, digests)
    # No event before the oldest is stored, so the walk ends there, or where it would take too long:
    # an index on people would double what the writer does for a view.
    ((first, last),) = db.execute(_ENDS, {}).fetchall()
    values = {**event, "floor": max(first or 0, (last or 0) - NEWEST_MAX), "limit": limit}
    video_id, title = db.execute(_VIDEO, {"video": video}).fetchone() or (None, None)

    def having(column: str, value: int, name: str) -> RelatedEvents:
        rows = db.execute(_NEWEST[column], {**values, "value": value}).fetchall()
        ((total,),) = db.execute(_TOTAL[column], {**values, "value": value}).fetchall()
        events = [RelatedEvent(*(*row, mark != ORIGINAL)) for *row, mark in rows]
        return RelatedEvents(name, events, total)

    return Related(
        person=None if person is None else having("person", person, f"{person:016x}"),
        video=None if video_id is None else having("video", video, video_id),
        title=title,
    )


def _of_body(db: Database, seq: int, digests: PersonDigests) -> tuple[Any, Any]:
    """Return the person and the number of the video of an event that is no view or lead.

    Also of one that is not counted yet.
    """
    kind, body = db.execute(_BODY, {"event": seq}).fetchone() or ("", None)
    document = document_of(body)
    if document is None:
        return None, None
    _, video, _, person = engagement(kind, document)
    (number,) = db.execute(_NUMBER, {"video_id": video}).fetchone() or (None,)
    return None if person is None else digests.number(person), number
