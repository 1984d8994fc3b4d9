"""Due deliveries in SQLite: read as of one moment, without those of cancelled replays."""

from contextlib import closing
from typing import Any, cast

from relay.store.sqlite import queries
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS
from tests.store.conformance import accept, event


class ErasedBetweenReads:
    """A reader that finds the bodies erased after its first look at the deliveries."""

    in_transaction = True

    def __init__(self, reader: sqlite3.Connection, other: sqlite3.Connection) -> None:
        self._reader = reader
        self._other = other

    def execute(self, sql: str, values: Any = ()) -> Any:
        found = self._reader.execute(sql, values)
        if "json_group_array" in sql:
            self._other.execute("UPDATE deliveries SET status = 'discarded'")
            self._other.execute("UPDATE events SET body = NULL, headers = NULL")
        return found


async def test_an_erasure_between_the_reads_of_a_lease_is_not_seen_by_half(
    store: SqliteStore,
) -> None:
    await accept(store, event("a"), event("b"))
    reader = sqlite3.connect(f"file:{store.path}?mode=ro", uri=True, isolation_level=None)
    other = sqlite3.connect(store.path, isolation_level=None)
    with closing(reader), closing(other):
        db = cast("sqlite3.Connection", ErasedBetweenReads(reader, other))
        named: Any = {"now_ms": NOW_MS, "limits": {"live": 9}, "leased": frozenset()}
        before = queries.due(db, "sales", **named, cancelled=())
        assert [each.event for each in before.deliveries] == [event("a"), event("b")]
        after = queries.due(reader, "sales", **named, cancelled=())
        assert after.deliveries == ()
