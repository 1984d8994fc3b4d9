"""Dead letters: deliveries that the relay has given up."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from relay.store.repository import Repository
from relay.store.rows import ORIGINAL
from relay.store.selection import OF_DELIVERY, OF_EVENT, Selection, of_delivery
from relay.store.sql import ALL, Condition, Database, FilteredSql, Sql, all_of

DISCARD_STEP_ROWS = 200
"""Dead letters discarded per transaction, so that acknowledgements are not delayed."""

GoesOn = Callable[[int], bool]
"""Called after each step with the number so far; the change ends at False."""


def always(_: int) -> bool:
    """Go on whatever the number."""
    return True


class DeadLetter(msgspec.Struct, frozen=True):
    """One delivery that the relay has given up."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    sink: str
    attempts: int
    settled_ms: int | None
    reason: str | None
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


class Reason(msgspec.Struct, frozen=True):
    """A sink's dead letters with one reason."""

    sink: str
    reason: str | None
    count: int
    first_ms: int | None
    """When the first of them died."""
    last_ms: int | None


Keys = Sequence[tuple[int, str]]
"""Deliveries, by event and sink."""


_CONDITIONS = {**OF_EVENT, **OF_DELIVERY}
# The index of a sink has its newest at hand.
_NEWEST = FilteredSql(
    """
SELECT e.seq, e.source, e.id, e.kind, e.received_at, d.sink, d.attempts, d.settled_at, d.reason,
    e.reconstructed
FROM main.deliveries AS d JOIN main.events AS e ON e.seq = d.event
WHERE d.sink = :sink AND d.status = 'dead' AND {where}
ORDER BY d.event DESC LIMIT :limit
""",
    _CONDITIONS,
)
_KEYS = FilteredSql(
    """
SELECT d.event, d.sink FROM main.deliveries AS d JOIN main.events AS e ON e.seq = d.event
WHERE d.sink = :sink AND d.status = 'dead' AND d.event <= :up_to AND {where}
ORDER BY d.event DESC LIMIT :limit
""",
    _CONDITIONS,
)
_COUNTED = """
SELECT d.sink, d.reason, count(*), min(d.settled_at), max(d.settled_at)
FROM main.deliveries AS d {join} WHERE d.status = 'dead' AND {{where}}
GROUP BY d.sink, d.reason
ORDER BY count(*) DESC, d.sink, d.reason COLLATE BINARY NULLS FIRST
"""
# Without the events, an index answers alone.
_REASONS = FilteredSql(_COUNTED.format(join=""), OF_DELIVERY)
_REASONS_OF_EVENTS = FilteredSql(
    _COUNTED.format(join="JOIN main.events AS e ON e.seq = d.event"), _CONDITIONS
)
# Seeks from one sink to the next in an index that has just such deliveries.
_SINKS = """
WITH RECURSIVE known (name) AS (
    SELECT min(sink) FROM main.deliveries WHERE {state}
    UNION ALL
    SELECT (SELECT min(sink) FROM main.deliveries WHERE {state} AND sink > name) FROM known
    WHERE name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL
"""


def sinks_by_state(*states: str) -> Mapping[str, Sql]:
    """Return the statements for the sinks with deliveries in some states."""
    return {state: Sql(_SINKS.format(state=state)) for state in states}


DEAD = sinks_by_state("status = 'dead'")


class DeadLetters(Repository, ABC):
    """All dead letters; all methods may raise StoreError."""

    async def newest(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        """Return the newest dead letters, above the limit if the last event has several."""

        def find(db: Database) -> list[DeadLetter]:
            where = self._where(db, selection)
            values = {**where.values, "limit": limit}
            found = [
                DeadLetter(*(*row, mark != ORIGINAL))
                for sink, _ in sinks_of(db, DEAD, selection.sink)
                for *row, mark in db.execute(_NEWEST.where(where), {**values, "sink": sink})
            ]
            return sorted(found, key=lambda letter: (-letter.seq, letter.sink))

        letters = await self._searcher.read(find)
        if len(letters) <= limit:
            return letters
        return [letter for letter in letters if letter.seq >= letters[limit - 1].seq]

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        """Count the selected dead letters by sink and reason, highest count first."""

        def count(db: Database) -> list[Reason]:
            of_event = self._connections.conditions.of_event(db, selection)
            statement = _REASONS if of_event == ALL else _REASONS_OF_EVENTS
            where = all_of(of_delivery(selection), of_event)
            return [Reason(*row) for row in db.execute(statement.where(where), where.values)]

        return await self._searcher.read(count)

    async def discard(self, selection: Selection, *, now_ms: int, goes_on: GoesOn = always) -> int:
        """Discard the selected dead letters in steps; return their number.

        If it raises, some may be discarded already.
        """
        count, up_to = 0, await self._last_event()
        while keys := await self._keys(selection, up_to):
            count += await self._discard(keys, now_ms)
            up_to, _ = keys[-1]
            if not goes_on(count):
                break
        return count

    async def _keys(self, selection: Selection, up_to: int) -> Keys:
        """Return the newest selected dead letters, up to an event."""

        def find(db: Database) -> Keys:
            where = self._where(db, selection)
            values = {**where.values, "up_to": up_to, "limit": DISCARD_STEP_ROWS}
            keys = [
                (event, sink)
                for each, _ in sinks_of(db, DEAD, selection.sink)
                for event, sink in db.execute(_KEYS.where(where), {**values, "sink": each})
            ]
            return sorted(keys, reverse=True)[:DISCARD_STEP_ROWS]

        return await self._searcher.read(find)

    def _where(self, db: Database, selection: Selection) -> Condition:
        """Return the condition on the dead letters of one sink."""
        of_event = self._connections.conditions.of_event(db, selection)
        return all_of(of_delivery(replace(selection, sink=None)), of_event)

    @abstractmethod
    async def _last_event(self) -> int:
        """Return the number of the last event that can be seen."""

    @abstractmethod
    async def _discard(self, keys: Keys, now_ms: int) -> int:
        """Discard dead letters in one transaction; return their number."""

    @abstractmethod
    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        """Discard a pending delivery; False if there is none."""


def sinks_of(
    db: Database, by_state: Mapping[str, Sql], sink: str | None
) -> Iterator[tuple[str, str]]:
    """Yield the sinks with deliveries in some states, or the only wanted one, and the state."""
    for state, sinks in by_state.items():
        for (name,) in db.execute(sinks, {}).fetchall() if sink is None else [(sink,)]:
            yield name, state
