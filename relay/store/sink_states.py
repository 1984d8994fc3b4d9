"""States that sinks were in over the last days: a row per change, by the owner of the sink."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import orjson

from relay.core.minutes import DAY_MS
from relay.core.sink_status import State
from relay.store.repository import Connections, Repository
from relay.store.sql import Database, Sql

KEPT_MS = 8 * DAY_MS


class StateSpan(msgspec.Struct, frozen=True):
    """A time in one state, in milliseconds since the epoch."""

    state: State | None
    """None where it is unknown: the relay was not running, or the sink was not configured."""
    from_ms: int
    to_ms: int | None
    """None for the current one."""


class LeftState(msgspec.Struct, frozen=True):
    """The state in which a sink was left by the relay that dispatched it last."""

    state: State
    since_ms: int
    """Times in which it is unknown do not interrupt a state."""
    was_parked: bool
    """Whether its last sends had parked it, whatever became of it and the relay since."""


class Change(NamedTuple):
    """A state that a sink has come into."""

    state: State | None
    """None if it is unknown from now on."""
    since_ms: int | None = None
    """Its beginning, if that is not now."""


_KNOWN = Sql("""
WITH RECURSIVE known (name) AS (
    SELECT min(sink) FROM main.sink_states
    UNION ALL
    SELECT (SELECT min(sink) FROM main.sink_states WHERE sink > name)
    FROM known WHERE name IS NOT NULL
)
SELECT s.sink, s.state FROM known CROSS JOIN main.sink_states AS s
WHERE s.sink = name AND s.at = (
    SELECT max(o.at) FROM main.sink_states AS o WHERE o.sink = name AND o.at <= :since
)
""")
_AFTER = Sql("SELECT sink, at, state FROM main.sink_states WHERE at > :since ORDER BY at")
_LEFT = Sql("""
SELECT last.state, (
    SELECT s.at FROM main.sink_states AS s WHERE s.sink = last.sink AND s.state = last.state
    AND s.at > coalesce((
        SELECT other.at FROM main.sink_states AS other
        WHERE other.sink = last.sink AND other.state <> last.state ORDER BY other.at DESC LIMIT 1
    ), -1)
    ORDER BY s.at LIMIT 1
), coalesce((
    SELECT CASE WHEN s.state = 'parked' THEN 1 ELSE 0 END FROM main.sink_states AS s
    WHERE s.sink = last.sink AND s.state IN ('active', 'parked') ORDER BY s.at DESC LIMIT 1
), 0)
FROM main.sink_states AS last WHERE last.sink = :sink AND last.state IS NOT NULL
ORDER BY last.at DESC LIMIT 1
""")
# Other relays note other sinks, and their clocks may be a little ahead.
_IS_AHEAD = """
{row}.at > :now + CASE
    WHEN {row}.sink IN (SELECT value FROM json_each(:sinks) AS x) THEN 0 ELSE :skew
END
"""
_DROP_LATER = Sql(f"""
DELETE FROM main.sink_states AS s WHERE at >= :now AND EXISTS (
    SELECT 1 FROM main.sink_states AS later
    WHERE later.sink = s.sink AND later.at > s.at AND {_IS_AHEAD.format(row="later")}
)
""")
_MOVE_LATER = Sql(f"""
UPDATE main.sink_states AS s SET at = :now WHERE at > :now AND {_IS_AHEAD.format(row="s")}
""")
_LAST = Sql("SELECT at, state FROM main.sink_states WHERE sink = :sink ORDER BY at DESC LIMIT 1")
_CHANGE = Sql("""
INSERT INTO main.sink_states (sink, at, state) VALUES (:sink, :at, :state)
ON CONFLICT (sink, at) DO UPDATE SET state = excluded.state
""")
_FORGET = Sql("""
DELETE FROM main.sink_states WHERE (sink, at) IN (
    SELECT s.sink, s.at FROM main.sink_states AS s WHERE s.at <= :old AND (
        s.state IS NULL OR EXISTS (
            SELECT 1 FROM main.sink_states AS later
            WHERE later.sink = s.sink AND later.at > s.at AND later.at <= :old
        )
    ) /*postgres FOR UPDATE SKIP LOCKED */
)
""")


class SinkStates(Repository):
    """States of all sinks; all methods may raise StoreError."""

    def __init__(self, connections: Connections, *, skew_ms: int) -> None:
        """`skew_ms` is the time by which another relay's clock may be ahead."""
        super().__init__(connections)
        self._skew_ms = skew_ms

    async def note(self, changes: Mapping[str, Change], *, now_ms: int) -> None:
        """Store the states that sinks are in; the same state again changes nothing.

        A state began when the change says, or now where that is before the last stored change.
        Later changes, from before the clock was set back, are replaced by their last state. Changes
        of over `KEPT_MS` ago are removed.
        """
        values = {
            "sinks": orjson.dumps(list(changes)).decode(),
            "skew": self._skew_ms,
            "now": now_ms,
            "old": now_ms - KEPT_MS,
        }

        def note(db: Database) -> None:
            db.execute(_DROP_LATER, values)
            db.execute(_MOVE_LATER, values)
            for sink, change in sorted(changes.items()):
                _note(db, sink, change, now_ms)
            db.execute(_FORGET, values)

        await self._background.transact(note)

    async def since(self, since_ms: int) -> Mapping[str, Sequence[StateSpan]]:
        """Return the states by sink, oldest first, and clipped to begin at `since_ms`.

        The first span may begin later: before it, the state is unknown.
        """
        values = {"since": since_ms}
        return await self._reader.read(
            lambda db: spans_since(since_ms, db.execute(_KNOWN, values), db.execute(_AFTER, values))
        )

    async def left(self, sinks: Collection[str]) -> Mapping[str, LeftState]:
        """Return the last known states of those of these sinks that have one.

        Dispatchers that begin wait for it, so it does not wait for operators' reads.
        """

        def read(db: Database) -> dict[str, LeftState]:
            found = {sink: db.execute(_LEFT, {"sink": sink}).fetchone() for sink in sinks}
            return {sink: _left(*row) for sink, row in found.items() if row is not None}

        return await self._connections.leaser.read(read)


def _left(state: State, since_ms: int, was_parked: int) -> LeftState:
    return LeftState(state, since_ms, was_parked=bool(was_parked))


def _note(db: Database, sink: str, change: Change, now_ms: int) -> None:
    last_ms, state = db.execute(_LAST, {"sink": sink}).fetchone() or (0, None)
    if change.state == state:
        return
    since_ms = change.since_ms
    at_ms = now_ms if since_ms is None or since_ms <= last_ms else min(since_ms, now_ms)
    db.execute(_CHANGE, {"sink": sink, "at": at_ms, "state": change.state})


def spans_since(
    since_ms: int, known: Iterable[Sequence[Any]], changes: Iterable[Sequence[Any]]
) -> dict[str, list[StateSpan]]:
    """Make spans from the sinks' states at a time, and from the later changes.

    `known` has sink and state, `changes` have sink, time and state, in order.
    """
    of_sinks: dict[str, list[tuple[State | None, int]]] = {}
    for sink, state in known:
        of_sinks[sink] = [(state, since_ms)]
    for sink, at, state in changes:
        of_sink = of_sinks.setdefault(sink, [])
        # Equal neighbours remain where the clock was set back.
        if not of_sink or of_sink[-1][0] != state:
            of_sink.append((state, at))
    return {sink: list(_spans(of_sink)) for sink, of_sink in of_sinks.items()}


def _spans(changes: Sequence[tuple[State | None, int]]) -> Iterator[StateSpan]:
    ends = [from_ms for _, from_ms in changes[1:]]
    for (state, from_ms), to_ms in zip_longest(changes, ends):
        yield StateSpan(state, from_ms, to_ms)
