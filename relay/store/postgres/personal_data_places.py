"""Places of personal data in the tables, and the statements that remove it.

`PLACES` is complete: it lists every column with text of a sender or a destination.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay.core.delivery import Status
from relay.store.audience import rollup
from relay.store.audience.reads import ROLLED_TO
from relay.store.personal_data import UnderWay
from relay.store.personal_data_traces import Traces
from relay.store.postgres.audience_tables import PostgresAudienceTables, wait_for
from relay.store.postgres.driver import Database
from relay.store.reconstructions import NAMED

_SENT = """
SELECT a.sink, e.kind, max(a.started_at + a.duration_ms),
    max(a.started_at + a.duration_ms) FILTER (WHERE a.result = 'delivered')
FROM relay.attempts AS a JOIN relay.events AS e ON e.seq = a.event
WHERE a.event = ANY(%(keys)b::bigint[]) GROUP BY a.event, e.kind, a.sink
"""
# A replay that opens deliveries of these events commits first, or finds no body any more.
_HOLD = """
SELECT 1 FROM relay.events WHERE seq = ANY(%(keys)b::bigint[]) ORDER BY seq FOR UPDATE
"""
# Where the outcome of the first try is unknown, a second one finds what the first has discarded.
_OPEN = """
SELECT d.event, d.sink, d.status = 'dead', e.source, e.id,
    d.due_at <= extract(epoch FROM clock_timestamp()) * 1000 + 60000 AND EXISTS (
        SELECT 1 FROM relay.ownership AS o
        WHERE o.sink = d.sink AND o.holder IS NOT NULL AND o.expires_at > clock_timestamp()
    )
FROM relay.deliveries AS d JOIN relay.events AS e ON e.seq = d.event
WHERE d.event = ANY(%(keys)b::bigint[]) AND (
    d.status IN ('pending', 'dead')
    OR (d.status = 'discarded' AND d.reason = 'erased' AND d.settled_at = %(now)s::bigint)
)
ORDER BY d.event, d.sink
"""

FindRelated = Callable[[Database, Sequence[int], int | None], Traces]
"""For some rows; if the time of their removal is passed, what depends on them is locked."""


class Place(NamedTuple):
    """Rows of one table, counted under `name` if one of their `columns` contains the address."""

    name: str
    table: str
    key: str
    columns: tuple[str, ...]
    removal: tuple[str, ...] = ()
    """Statements with `keys` and `now`."""
    find_related: FindRelated = lambda _, __, ___: Traces()
    """Returns what else the rows' removal affects; called before it."""
    erase_first: Callable[[Database, Sequence[int]], None] = lambda _, __: None
    """Erases what the statements cannot; called before them."""
    weight: int = 1
    """Relative cost of removing one row."""
    number: str | None = None
    """Column with the person's number, instead of columns with an address."""
    is_kept: bool = False


def _of_events(db: Database, keys: Sequence[int], now_ms: int | None) -> Traces:
    """Return the sinks that were sent the events, and the deliveries that are discarded."""
    traces = Traces()
    values = {"keys": list(keys), "now": now_ms}
    lock = ""
    if now_ms is not None:
        db.execute(_HOLD, values)
        # Before the attempts are read: a settlement under way adds one.
        lock = "FOR UPDATE OF d"
    for seq, sink, is_dead, source, event_id, is_owned in db.execute(_OPEN + lock, values):
        traces.count_discarded(sink, Status.DEAD if is_dead else Status.PENDING)
        if not is_dead:
            traces.discarded[seq, sink] = UnderWay(sink, source, event_id)
            traces.owned |= {(seq, sink)} if is_owned else set()
    for sink, kind, last_ms, confirmed_ms in db.execute(_SENT, values):
        is_confirmed = confirmed_ms is not None
        traces.count_sent(
            sink, kind, confirmed_ms if is_confirmed else last_ms, is_confirmed=is_confirmed
        )
    return traces


def _forget_views(db: Database, events: Sequence[int]) -> None:
    # Another relay may be adding to the same days.
    wait_for(db, ROLLED_TO)
    rollup.forget_views(PostgresAudienceTables(db), events)


_RANDOM = "'erased-' || replace(gen_random_uuid()::text, '-', '')"

PLACES = (
    # In the order in which requests move on: one that does so during an erasure is found later.
    Place(
        name="quarantine",
        table="quarantine",
        key="number",
        columns=("body", "headers"),
        removal=("DELETE FROM relay.quarantine WHERE number = ANY(%(keys)b::bigint[])",),
    ),
    Place(
        name="unreadable",
        table="unreadable",
        key="number",
        columns=("body", "headers"),
        removal=(
            """
            UPDATE relay.unreadable SET body = NULL, headers = NULL
            WHERE number = ANY(%(keys)b::bigint[])
            """,
        ),
    ),
    Place(
        name="events",
        table="events",
        key="seq",
        columns=("body", "headers", "created_at"),
        removal=(
            """
            UPDATE relay.deliveries SET status = 'discarded', settled_at = %(now)s,
                turn = NULL, reason = 'erased'
            WHERE event = ANY(%(keys)b::bigint[]) AND status IN ('pending', 'dead')
            """,
            "UPDATE relay.attempts SET answer = '' WHERE event = ANY(%(keys)b::bigint[])",
            """
            UPDATE relay.events SET body = NULL, headers = NULL, created_at = NULL
            WHERE seq = ANY(%(keys)b::bigint[])
            """,
            # The id of a reconstruction is a digest of facts, one of which is the address.
            f"""
            UPDATE relay.events SET id = {_RANDOM}
            WHERE seq = ANY(%(keys)b::bigint[]) AND reconstructed > 0
            """,
        ),
        find_related=_of_events,
    ),
    Place(
        name="excerpts",
        table="attempts",
        key="number",
        columns=("answer",),
        removal=("UPDATE relay.attempts SET answer = '' WHERE number = ANY(%(keys)b::bigint[])",),
    ),
    Place(
        name="reasons",
        table="attempts",
        key="number",
        columns=("reason",),
        removal=(
            "UPDATE relay.attempts SET reason = 'erased' WHERE number = ANY(%(keys)b::bigint[])",
        ),
    ),
    Place(
        name="reasons",
        table="deliveries",
        key="event",
        columns=("reason",),
        removal=(
            """
            UPDATE relay.deliveries SET reason = 'erased'
            WHERE event = ANY(%(keys)b::bigint[]) AND reason > ''
            """,
        ),
    ),
    Place(
        name="searches",
        table="replays",
        key="id",
        columns=("selection",),
        # Not removed but replaced, so that the selection does not become everything.
        removal=(
            """
            UPDATE relay.replays SET selection = '{"email":"(erased)"}',
                state = CASE WHEN state = 'running' THEN 'cancelled' ELSE state END,
                ended_at = coalesce(ended_at, %(now)s)
            WHERE id = ANY(%(keys)b::bigint[])
            """,
        ),
    ),
    Place(
        name="videos",
        table="videos",
        key="number",
        columns=("title",),
        removal=("UPDATE relay.videos SET title = NULL WHERE number = ANY(%(keys)b::bigint[])",),
    ),
    Place(
        name="videos",
        table="videos",
        key="number",
        columns=("id",),
        removal=(f"UPDATE relay.videos SET id = {_RANDOM} WHERE number = ANY(%(keys)b::bigint[])",),
    ),
    # Needed to recognise duplicates.
    Place(name="kept_ids", table="events", key="seq", columns=("id", "kind"), is_kept=True),
    Place(
        name="reports",
        table="reconciliations",
        key="id",
        columns=("report",),
        removal=(
            f"""
            UPDATE relay.reconciliations SET report = (report::jsonb - '{NAMED}')::text
            WHERE id = ANY(%(keys)b::bigint[])
            """,
        ),
    ),
    # The last one: then the person's number goes too.
    Place(
        name="views",
        table="audience",
        key="event",
        columns=(),
        removal=("DELETE FROM relay.audience WHERE event = ANY(%(keys)b::bigint[])",),
        erase_first=_forget_views,
        # The sets of its day are written anew.
        weight=10,
        number="person",
    ),
)
