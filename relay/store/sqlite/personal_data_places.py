"""Places of personal data in the tables, and the statements that remove it.

`PLACES` is complete: it lists every column with text of a sender or a destination.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from relay.core.delivery import Status
from relay.store.audience.rollup import forget_views
from relay.store.personal_data import UnderWay
from relay.store.personal_data_traces import Traces
from relay.store.reconstructions import NAMED
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.id_periods import BLOCK_BITS, ERASED

_EVENT = "SELECT source, id, kind FROM events WHERE seq = ?"
_SENT = """
SELECT sink, max(result = 'delivered'),
    coalesce(max(iif(result = 'delivered', started_at + duration_ms, NULL)),
        max(started_at + duration_ms))
FROM attempts WHERE event = ? GROUP BY sink
"""
_OPEN = "SELECT sink, status FROM deliveries WHERE event = ? AND status IN ('pending', 'dead')"


class Place(NamedTuple):
    """Rows of one table, counted under `name` if one of their `columns` contains the address."""

    name: str
    table: str
    key: str
    columns: tuple[str, ...]
    removal: tuple[str, ...]
    """Statements with `:key` and `:now`; none if the rows stay."""
    find_related: Callable[[sqlite3.Connection, int], Traces] = lambda _, __: Traces()
    """Returns what else a row's removal affects; called before it."""
    erase_first: Callable[[sqlite3.Connection, Sequence[int]], None] = lambda _, __: None
    """Erases what the statements cannot; called before them."""
    weight: int = 1
    """Relative cost of removing one row."""
    number: str | None = None
    """Column with the person's number, instead of columns with an address."""

    @property
    def is_kept(self) -> bool:
        return not self.removal


def _of_event(db: sqlite3.Connection, seq: int) -> Traces:
    """Return the sinks that were sent an event, and its deliveries that are discarded."""
    traces = Traces()
    event = db.execute(_EVENT, (seq,)).fetchone()
    if event is None:
        return traces
    source, event_id, kind = event
    for sink, confirmed, last_ms in db.execute(_SENT, (seq,)):
        traces.count_sent(sink, kind, last_ms, is_confirmed=bool(confirmed))
    for sink, status in db.execute(_OPEN, (seq,)):
        traces.count_discarded(sink, Status(status))
        if status == Status.PENDING:
            traces.discarded[seq, sink] = UnderWay(sink, source, event_id)
    return traces


def _forget_views(db: sqlite3.Connection, events: Sequence[int]) -> None:
    forget_views(SqliteAudienceTables(db), events)


PLACES = (
    # In the order in which requests move on: one that does so during an erasure is found later.
    Place(
        name="quarantine",
        table="quarantine",
        key="number",
        columns=("body", "headers"),
        removal=("DELETE FROM quarantine WHERE number = :key",),
    ),
    Place(
        name="unreadable",
        table="unreadable",
        key="rowid",
        columns=("body", "headers"),
        removal=("UPDATE unreadable SET body = NULL, headers = NULL WHERE rowid = :key",),
    ),
    Place(
        name="events",
        table="events",
        key="seq",
        columns=("body", "headers", "created_at"),
        removal=(
            """
            UPDATE deliveries SET status = 'discarded', settled_at = :now, reason = 'erased'
            WHERE event = :key AND status IN ('pending', 'dead')
            """,
            "UPDATE attempts SET answer = '' WHERE event = :key",
            "UPDATE events SET body = NULL, headers = NULL, created_at = NULL WHERE seq = :key",
            # The id of a reconstruction is a digest of facts, one of which is the address. A filter
            # would still tell whether the id was there; the next start makes it anew.
            f"""
            DELETE FROM id_filters WHERE block = (
                SELECT seq >> {BLOCK_BITS} FROM events WHERE seq = :key AND reconstructed > 0
            )
            """,
            f"""
            UPDATE events SET id = '{ERASED}' || hex(randomblob(8))
            WHERE seq = :key AND reconstructed > 0
            """,
        ),
        find_related=_of_event,
    ),
    Place(
        name="excerpts",
        table="attempts",
        key="rowid",
        columns=("answer",),
        removal=("UPDATE attempts SET answer = '' WHERE rowid = :key",),
    ),
    Place(
        name="reasons",
        table="attempts",
        key="rowid",
        columns=("reason",),
        removal=("UPDATE attempts SET reason = 'erased' WHERE rowid = :key",),
    ),
    Place(
        name="reasons",
        table="deliveries",
        key="event",
        columns=("reason",),
        removal=("UPDATE deliveries SET reason = 'erased' WHERE event = :key AND reason > ''",),
    ),
    Place(
        name="searches",
        table="replays",
        key="id",
        columns=("selection",),
        # Not removed but replaced, so that the selection does not become everything.
        removal=(
            """
            UPDATE replays SET selection = '{"email":"(erased)"}',
                state = iif(state = 'running', 'cancelled', state),
                ended_at = coalesce(ended_at, :now)
            WHERE id = :key
            """,
        ),
    ),
    Place(
        name="videos",
        table="videos",
        key="number",
        columns=("title",),
        removal=("UPDATE videos SET title = NULL WHERE number = :key",),
    ),
    Place(
        name="videos",
        table="videos",
        key="number",
        columns=("id",),
        removal=("UPDATE videos SET id = 'erased-' || hex(randomblob(8)) WHERE number = :key",),
    ),
    # Needed to recognise duplicates.
    Place(name="kept_ids", table="events", key="seq", columns=("id", "kind"), removal=()),
    Place(
        name="reports",
        table="reconciliations",
        key="id",
        columns=("report",),
        removal=(
            f"UPDATE reconciliations SET report = json_remove(report, '$.{NAMED}') WHERE id = :key",
        ),
    ),
    # The last one: then the person's number goes too.
    Place(
        name="views",
        table="audience",
        key="event",
        columns=(),
        erase_first=_forget_views,
        # The sets of its day are written anew.
        weight=10,
        number="person",
        removal=("DELETE FROM audience WHERE event = :key",),
    ),
)
