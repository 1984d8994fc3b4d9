"""What a replay looks up, in SQL: its events with their bodies, and how far it is."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import orjson

from relay.delivery import Status
from relay.event import Event
from relay.store.desk import Chosen, Replay, Selection
from relay.store.driver import Row, sqlite3
from relay.store.search import all_of, fits

_CHOSEN = """
SELECT e.seq, e.source, e.id, e.kind, e.created_at, e.received_at, e.body, e.headers
FROM events e WHERE {fits} AND e.seq <= ? AND e.body IS NOT NULL ORDER BY e.seq LIMIT ?
"""
_CHOSEN_BYTES = 1 << 20
"""So many bytes of bodies are chosen in one go, or one that is larger."""
# One row of JSON, for Python's lock changes hands at each row.
_STANDING = """
SELECT json_group_array(json_array(d.event, d.sink, d.status)) FROM deliveries d
WHERE d.event IN (SELECT value FROM json_each(?)) AND {meant}
"""
_REPLAY = "id, created_at, selection, state, total, opened, cursor, until, ended_at"


def choose(
    db: sqlite3.Connection, selection: Selection, *, after: int, until: int, limit: int
) -> list[Chosen]:
    """The oldest that fit and still have their body."""
    where, values = fits(selection, ("e.seq > ?", [after]))
    found = list(_light(db.execute(_CHOSEN.format(fits=where), (*values, until, limit))))
    standing = _standing(db, selection, [row[0] for row in found])
    return [
        Chosen(
            row[0],
            Event(
                source=row[1],
                id=row[2],
                kind=row[3],
                created_at=row[4],
                received_ms=row[5],
                body=row[6],
                headers=row[7],
            ),
            standing[row[0]],
        )
        for row in found
    ]


def _light(rows: Iterable[Row]) -> Iterator[Row]:
    left = _CHOSEN_BYTES
    for row in rows:
        yield row
        left -= len(row[6])
        if left <= 0:
            return


def _standing(
    db: sqlite3.Connection, selection: Selection, seqs: Sequence[int]
) -> Mapping[int, dict[str, Status]]:
    """Deliveries by event and sink; where dead ones of one reason are meant, no others."""
    reason = selection.reason if selection.outcome == "dead" else None
    meant, values = all_of(("instr(d.reason, ?) > 0", [reason]))
    sql = _STANDING.format(meant=meant)
    row = db.execute(sql, (orjson.dumps(seqs).decode(), *values)).fetchone()
    standing: defaultdict[int, dict[str, Status]] = defaultdict(dict)
    for event, sink, status in orjson.loads(row[0]):
        standing[event][sink] = Status(status)
    return standing


def replays(db: sqlite3.Connection, *, limit: int) -> list[Replay]:
    """The newest."""
    sql = f"SELECT {_REPLAY} FROM replays ORDER BY id DESC LIMIT ?"
    return [_replay(row) for row in db.execute(sql, (limit,))]


def running(db: sqlite3.Connection) -> list[Replay]:
    """The ones that go on, the first begun first."""
    sql = f"SELECT {_REPLAY} FROM replays WHERE state = 'running' ORDER BY id"
    return [_replay(row) for row in db.execute(sql)]


def replay(db: sqlite3.Connection, number: int) -> Replay | None:
    """One of them."""
    row = db.execute(f"SELECT {_REPLAY} FROM replays WHERE id = ?", (number,)).fetchone()
    return None if row is None else _replay(row)


def _replay(row: Row) -> Replay:
    return Replay(
        id=row[0],
        created_ms=row[1],
        selection=msgspec.json.decode(row[2], type=Selection),
        state=row[3],
        total=row[4],
        opened=row[5],
        cursor=row[6],
        until=row[7],
        ended_ms=row[8],
    )


def under_way(db: sqlite3.Connection, number: int) -> dict[str, int]:
    """How many pending deliveries a replay has opened, by sink."""
    sql = """
SELECT sink, count(*) FROM deliveries WHERE status = 'pending' AND replay = ? GROUP BY sink
"""
    return dict(db.execute(sql, (number,)).fetchall())
