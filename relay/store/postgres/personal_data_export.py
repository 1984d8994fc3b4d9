"""Rows of a person's data in PostgreSQL, for an export."""

from collections.abc import Sequence

from relay.store.email_matcher import EmailMatcher
from relay.store.events import AttemptRecord, history
from relay.store.personal_data import KeptRequest, Mention, View
from relay.store.personal_data_parts import UNVERIFIED, Record
from relay.store.postgres.driver import Database, Row
from relay.store.rows import is_damaged

_UNREADABLE = """
SELECT source, received_at, reason, coalesce(headers, ''), body, digest
FROM relay.unreadable WHERE number = ANY(%b::bigint[]) ORDER BY number
"""
_QUARANTINED = f"""
SELECT source, received_at, '{UNVERIFIED}', headers, body, NULL
FROM relay.quarantine WHERE number = ANY(%b::bigint[]) ORDER BY number
"""
_MENTIONS = """
SELECT e.source, e.id, e.body, a.sink, a.started_at, a.duration_ms, a.result, a.status, a.reason,
    a.answer, a.replay
FROM relay.attempts AS a JOIN relay.events AS e ON e.seq = a.event
WHERE a.number = ANY(%b::bigint[]) ORDER BY a.number
"""
_VIEWS = """
SELECT a.source, v.id, v.title, a.step, a.at
FROM relay.audience AS a LEFT JOIN relay.videos AS v ON v.number = a.video
WHERE a.event = ANY(%b::bigint[]) ORDER BY a.event
"""


def records(
    db: Database, place: str, address: EmailMatcher, keys: Sequence[int]
) -> Sequence[Record]:
    """Read rows of a place, by its name."""
    match place:
        case "events":
            histories = (history(db, key) for key in keys)
            return [each for each in histories if each is not None]
        case "unreadable":
            return [_request(row) for row in db.execute(_UNREADABLE, (list(keys),))]
        case "quarantine":
            return [_request(row) for row in db.execute(_QUARANTINED, (list(keys),))]
        case "excerpts":
            return _mentions(db, address, keys)
    return [View(*row) for row in db.execute(_VIEWS, (list(keys),))]


def _request(row: Row) -> KeptRequest:
    source, received_ms, reason, headers, body, received = row
    damaged = received is not None and is_damaged(body, received)
    return KeptRequest(source, received_ms, reason, headers, body or b"", damaged)


def _mentions(db: Database, address: EmailMatcher, keys: Sequence[int]) -> list[Mention]:
    """Leave out answers to the person's own events, which already include them."""
    return [
        Mention(source, event_id, AttemptRecord(*attempt))
        for source, event_id, body, *attempt in db.execute(_MENTIONS, (list(keys),))
        if not address.stands_in(body)
    ]
