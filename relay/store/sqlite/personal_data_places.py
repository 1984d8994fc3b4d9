"""Tables that can hold traces of a person, and the statements that remove those.

`PLACES` is the whole list: a table that can hold what a sender or a far end wrote stands in it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.core.delivery import Status
from relay.store.personal_data import Erasure, Told, UnderWay
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.operator_writes import Moved

_EVENT = "SELECT source, id, kind FROM events WHERE seq = ?"
_SENT = """
SELECT sink, max(result = 'delivered'),
    coalesce(max(iif(result = 'delivered', started_at + duration_ms, NULL)),
        max(started_at + duration_ms))
FROM attempts WHERE event = ? GROUP BY sink
"""
_OPEN = "SELECT sink, status FROM deliveries WHERE event = ? AND status IN ('pending', 'dead')"


@dataclass(slots=True)
class Traces:
    """What is found of a person, or removed, summed up."""

    rows: Counter[str] = field(default_factory=Counter)
    """By the names of the places, which are fields of `Erasure`."""
    moved: Moved = field(default_factory=Counter)
    sent: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """By sink, kind, and whether the sink has confirmed it."""
    last_ms: dict[tuple[str, str, bool], int] = field(default_factory=dict)
    cut: dict[tuple[int, str], UnderWay] = field(default_factory=dict)
    """Deliveries that are not to be made any more, by event and sink."""

    def add(self, other: "Traces") -> None:
        self.rows.update(other.rows)
        self.moved.update(other.moved)
        self.sent.update(other.sent)
        for key, ms in other.last_ms.items():
            self.last_ms[key] = max(ms, self.last_ms.get(key, 0))
        self.cut |= other.cut

    def erasure(self, under_way: Sequence[UnderWay], *, wiped: bool) -> Erasure:
        return Erasure(
            **{place.name: self.rows[place.name] for place in PLACES},
            pending=self._discarded(Status.PENDING),
            dead=self._discarded(Status.DEAD),
            told=list(self._told(confirmed=True)),
            unconfirmed=list(self._told(confirmed=False)),
            under_way=under_way,
            wiped=wiped,
        )

    def _discarded(self, before: Status) -> int:
        return -sum(count for (_, status), count in self.moved.items() if status is before)

    def _told(self, *, confirmed: bool) -> Iterator[Told]:
        for key, count in sorted(self.sent.items()):
            sink, kind, is_confirmed = key
            if is_confirmed is confirmed:
                yield Told(sink=sink, kind=kind, count=count, last_ms=self.last_ms[key])


class Place(NamedTuple):
    """Rows of one table; those whose `columns` hold the address are counted under `name`."""

    name: str
    table: str
    key: str
    columns: tuple[str, ...]
    removal: tuple[str, ...]
    """Statements that take `:key` and `:now`; none where the rows have to stay."""
    look: Callable[[sqlite3.Connection, int], Traces] = lambda _, __: Traces()
    """What else follows from the removal of a row; asked before it."""
    number: str | None = None
    """The column that holds the person's number, in place of columns that hold an address."""


def _of_event(db: sqlite3.Connection, seq: int) -> Traces:
    """Who was sent an event, and which of its deliveries come to an end."""
    found = Traces()
    event = db.execute(_EVENT, (seq,)).fetchone()
    if event is None:
        return found
    source, event_id, kind = event
    for sink, confirmed, last_ms in db.execute(_SENT, (seq,)):
        key = (sink, kind, bool(confirmed))
        found.sent[key] += 1
        found.last_ms[key] = last_ms
    for sink, status in db.execute(_OPEN, (seq,)):
        found.moved[sink, Status(status)] -= 1
        found.moved[sink, Status.DISCARDED] += 1
        if status == Status.PENDING:
            found.cut[seq, sink] = UnderWay(sink=sink, source=source, id=event_id)
    return found


PLACES = (
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
        ),
        look=_of_event,
    ),
    Place(
        name="unreadable",
        table="unreadable",
        key="rowid",
        columns=("body", "headers"),
        removal=("UPDATE unreadable SET body = NULL, headers = NULL WHERE rowid = :key",),
    ),
    Place(
        name="quarantine",
        table="quarantine",
        key="number",
        columns=("body", "headers"),
        removal=("DELETE FROM quarantine WHERE number = :key",),
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
        # No address is like this one, so that what was chosen by it does not become everything.
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
        name="views",
        table="audience",
        key="event",
        columns=(),
        number="person",
        removal=("DELETE FROM audience WHERE event = :key",),
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
    # They tell a repetition from a new event.
    Place(name="kept_ids", table="events", key="seq", columns=("id", "kind"), removal=()),
)
