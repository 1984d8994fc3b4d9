"""The numbers of the events that a selection can match, and their receipts in SQL."""

import re
from functools import partial

from relay.core.event import KINDS
from relay.store import seq_range as ranges
from relay.store.globs import regular_expression
from relay.store.postgres.driver import Database
from relay.store.postgres.text import storable
from relay.store.selection import Selection

_ENDS = "SELECT min(seq), max(seq) FROM relay.events"
_RECEIVED = "SELECT received_at FROM relay.events WHERE seq >= %s ORDER BY seq LIMIT 1"
_LAST = """
SELECT max(last_at) FROM (
    SELECT kind, source, last_at FROM relay.totals
    UNION ALL SELECT kind, source, last_at FROM relay.added_totals
) AS known
WHERE kind = ANY(%b::text[]) AND (%s::text IS NULL OR source = %s)
"""


def seq_range(db: Database, selection: Selection) -> range:
    """Return the numbers of all events that the selection can match, and of others."""
    first, last = db.execute(_ENDS).fetchall()[0]
    return ranges.seq_range(
        selection,
        range(0) if first is None else range(first, last + 1),
        received_ms=partial(received_ms, db),
        newest_ms=partial(_newest_ms, db),
    )


def received_ms(db: Database, seq: int) -> int | None:
    """Return the receipt of the first event from a number on."""
    row = db.execute(_RECEIVED, (seq,)).fetchone()
    return None if row is None else int(row[0])


def _newest_ms(db: Database, kind: str, source: str | None) -> int | None:
    matches = re.compile(regular_expression(kind)).fullmatch
    kinds = [each for each in (*KINDS, "other") if matches(each)]
    if kind not in KINDS:
        kinds.append("other")
    where = None if source is None else storable(source)
    newest: int | None = db.execute(_LAST, (kinds, where, where)).fetchall()[0][0]
    return newest
