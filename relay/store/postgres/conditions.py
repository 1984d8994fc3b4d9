"""Selections in SQL: one set of conditions for lists, counts, replays and discards."""

from collections.abc import Sequence

from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, engagement
from relay.store.globs import regular_expression
from relay.store.keyed_digests import PersonDigests
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.rows import document_of, within_bytes
from relay.store.selection import Condition, Selection, all_of, word_forms

COUNTED_TO = "coalesce((SELECT value FROM relay.state WHERE name = 'audience'), 0)"
"""The last event that the audience has counted."""

WITH_PREFIX = "id BETWEEN %s AND %s"
"""Whether an id begins with a text, for the index of ids; the values are of `prefix_range`."""

_CONTAINS = 'strpos(lower(relay.body_text(e.body) COLLATE "C"), %s) > 0'
_ESCAPES = r"position(E'\\x5c'::bytea IN e.body) > 0"
_OF_PERSON = """
(e.seq IN (SELECT event FROM relay.audience WHERE person = %s) OR e.seq = ANY(%b::bigint[]))
"""
_VIDEO = """
coalesce(
    relay.body_value(e.body, 'data', 'video', 'id'),
    CASE WHEN starts_with(e.kind, 'video.') THEN relay.body_value(e.body, 'data', 'id') END
) = %s
"""
_EMAIL = """
%s IN (
    lower(relay.body_value(e.body, 'data', 'email') COLLATE "C"),
    lower(relay.body_value(e.body, 'data', 'viewer', 'email') COLLATE "C")
)
"""
_UNCOUNTED = f"""
SELECT seq, kind, octet_length(body) FROM relay.events
WHERE seq > greatest({COUNTED_TO}, %s) AND seq <= %s
    AND kind IN ('{VIDEO_WATCHED}', '{LEAD_CAPTURED}') AND body IS NOT NULL
ORDER BY seq LIMIT %s
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM relay.events"
_BODIES = "SELECT seq, kind, body FROM relay.events WHERE seq = ANY(%b::bigint[])"
_STEP_ROWS = 1000
_STEP_BYTES = 4 << 20


def of_event(db: Database, selection: Selection, digests: PersonDigests) -> list[Condition]:
    """Return the conditions on `events e` that do not concern deliveries."""
    return [
        ("e.id = %s", [_storable(selection.id)]),
        *([] if selection.id_prefix is None else [_with_prefix(selection.id_prefix)]),
        ("e.source = %s", [_storable(selection.source)]),
        *([] if selection.kind is None else [_of_kind(selection.kind)]),
        ("e.received_at >= %s", [selection.since_ms]),
        ("e.received_at < %s", [selection.until_ms]),
        ("e.seq < %s", [selection.before]),
        *([] if selection.video is None else [_parsed(_VIDEO, storable(selection.video))]),
        *([] if selection.email is None else [_parsed(_EMAIL, _lower(storable(selection.email)))]),
        *_of_person(db, selection.person_number, digests),
        *_words(selection.words),
    ]


def of_delivery(selection: Selection) -> list[Condition]:
    """Return the conditions on existing `deliveries d`."""
    return [
        ("d.sink = %s", [_storable(selection.sink)]),
        ("d.status = %s", [selection.status]),
        ("strpos(d.reason, %s) > 0", [_storable(selection.reason)]),
    ]


def fits(db: Database, selection: Selection, digests: PersonDigests, *more: Condition) -> Condition:
    """Return the condition on `events e`, except that a sink has missed them."""
    conditions = [*of_event(db, selection, digests), *more]
    if selection.outcome != "missed" and selection.names_deliveries:
        sql, values = all_of(*of_delivery(selection))
        exists = f"EXISTS (SELECT 1 FROM relay.deliveries d WHERE d.event = e.seq AND {sql})"
        conditions.append((exists, values))
    return all_of(*conditions)


def prefix_range(prefix: str) -> list[str]:
    """Return the first and the last text that begin with a prefix, in the order of bytes."""
    first = storable(prefix)
    return [first, first + "\U0010ffff"]


def uncounted(db: Database, person: int, digests: PersonDigests) -> list[int]:
    """Return the events of a person that the audience has not counted yet."""
    seqs: list[int] = []
    after = 0
    ((end,),) = db.execute(_LAST).fetchall()
    while rows := db.execute(_UNCOUNTED, (after, end, _STEP_ROWS)).fetchall():
        step = [row[0] for row in within_bytes(rows, _STEP_BYTES, lambda row: int(row[2]))]
        for seq, kind, body in db.execute(_BODIES, (step,)):
            if _person_of(kind, body, digests) == person:
                seqs.append(seq)
        after = step[-1]
    return seqs


def _person_of(kind: str, body: bytes | None, digests: PersonDigests) -> int | None:
    """Return the person whom the audience will count for an event."""
    document = document_of(body)
    if document is None:
        return None
    step, _, _, person = engagement(kind, document)
    return None if step is None or person is None else digests.number(person)


def _of_person(db: Database, person: int | None, digests: PersonDigests) -> list[Condition]:
    if person is None:
        return []
    return [(_OF_PERSON, [person, uncounted(db, person, digests)])]


def _with_prefix(prefix: str) -> Condition:
    return f"e.{WITH_PREFIX}", [*prefix_range(prefix)]


def _of_kind(glob: str) -> Condition:
    return "e.kind ~ %s", [regular_expression(storable(glob))]


def _parsed(sql: str, value: str) -> Condition:
    """Parse a body only if it contains the value, or an escape that may hide it."""
    return f"CASE WHEN {_CONTAINS} OR {_ESCAPES} THEN {sql} END", [_lower(value), value]


def _words(text: str | None) -> list[Condition]:
    """Return one condition per word."""
    if text is None:
        return []
    words = word_forms(text)
    if not words:
        return [("FALSE", [])]
    return [_word(forms) for forms in words]


def _word(forms: Sequence[str]) -> Condition:
    return f"({' OR '.join([_CONTAINS] * len(forms))})", [_lower(form) for form in forms]


def _lower(text: str) -> str:
    """Return the text with ASCII letters in lower case."""
    return text.encode().lower().decode()


def _storable(text: str | None) -> str | None:
    return None if text is None else storable(text)
