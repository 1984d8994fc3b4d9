"""Turns in SQLite: their cost with a large backlog, and the events that pass them on."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from relay.core.config_values import Size
from relay.store.ordering import HELD_MS, OrderingKeys
from relay.store.rows import digest
from relay.store.sqlite import accept as acceptance
from relay.store.sqlite import ordering, queries, schema, settle
from relay.store.sqlite.known_ids import KnownIds
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from relay.store.totals import Totals
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, lease, settlement
from tests.store.ordering import of_key

if TYPE_CHECKING:
    from relay.store import Tier

FEW, MANY = 100, 20_000
ANN = "ann.lee@example.com"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection, now_ms=NOW_MS)
        connection.executescript(acceptance.TRIGGER + settle.TRIGGER + ordering.TRIGGER)
        yield connection


def rows(store: SqliteStore, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)) as other:
        return other.execute(sql).fetchall()


async def settle_all(store: SqliteStore, *, now_ms: int = NOW_MS) -> list[str]:
    """Deliver all due events, lease by lease; return their ids in order."""
    taken: list[str] = []
    while found := (await lease(store, now_ms=now_ms)).deliveries:
        for each in found:
            await store.settle(settlement(each, at_ms=now_ms))
            taken.append(each.event.id)
    return taken


def fill(db: sqlite3.Connection, count: int, *, keys: int) -> OrderingKeys:
    """Accept this many events, of this many keys in turn."""
    made = ordering.ordering_keys(db)
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO events VALUES (?, 'main', ?, 'video.ready', NULL, ?, ?, x'', x'', 0)",
        ((seq, f"old{seq}", NOW_MS, digest(b"")) for seq in range(1, count + 1)),
    )
    db.executemany(
        "INSERT INTO deliveries (event, sink, status, due_at, turn) "
        "VALUES (?, 'sales', 'pending', ?, ?)",
        (
            (
                seq,
                NOW_MS + (HELD_MS if seq > keys else 0),
                made.live("sales", f"video {seq % keys}"),
            )
            for seq in range(1, count + 1)
        ),
    )
    db.execute("COMMIT")
    db.execute("PRAGMA optimize")
    return made


class Steps:
    """Counts the steps of SQLite's machine, which tell a search from a scan on any machine."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.count = 0

    def __enter__(self) -> Self:
        self._db.set_progress_handler(self._step, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.set_progress_handler(None, 0)

    def _step(self) -> int:
        self.count += 1
        return 0


def cycle(db: sqlite3.Connection, made: OrderingKeys, *, key: str) -> int:
    """Accept an event, lease and settle it; return the number of steps that took."""
    accepting = acceptance.Acceptance(made, KnownIds(b"", 0, ()), acceptance.last_number(db))
    with Steps(db) as steps:
        new = event("new")
        assert accepting(db, [(new, [of_key(key)], Totals().of(new))]) == ["accepted"]
        limits: dict[Tier, int] = {"live": 8, "tried": 8}
        due = partial(
            queries.due, db, "sales", now_ms=NOW_MS, limits=limits, leased=frozenset(), cancelled=()
        )
        found = due()
        done = [settlement(each) for each in found.deliveries]
        assert done
        settle.settle(db, [done])
        assert due().deliveries
    return steps.count


@pytest.mark.parametrize("spread", ["one key", "a key each"])
def test_a_long_backlog_costs_a_turn_no_more_than_a_short_one(spread: str) -> None:
    counts = []
    for length in (FEW, MANY):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            schema.migrate(db, now_ms=NOW_MS)
            db.executescript(acceptance.TRIGGER + settle.TRIGGER + ordering.TRIGGER)
            keys = 1 if spread == "one key" else length
            made = fill(db, length, keys=keys)
            counts.append(cycle(db, made, key="video 0"))
    few, many = counts
    assert many <= few * 1.1


def test_queries_of_turns_use_the_index(
    db: sqlite3.Connection,
) -> None:
    for question in (
        "SELECT min(event) FROM deliveries WHERE sink = ? AND turn = ?",
        "SELECT 1 FROM deliveries WHERE sink = ? AND turn = iif(1, ?, NULL)",
    ):
        (step,) = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {question}", ("s", 1))]
        assert "USING COVERING INDEX deliveries_turns (sink=? AND turn=?)" in step


async def test_a_turn_does_not_reveal_its_key(store: SqliteStore, db: sqlite3.Connection) -> None:
    await accept(store, event("a"), verdicts=[of_key(f"viewer {ANN}"), of_key(ANN, "crm")])
    (one,), (other,) = rows(store, "SELECT turn FROM deliveries ORDER BY sink")
    elsewhere = ordering.ordering_keys(db)
    assert len({one, other, elsewhere.live("crm", ANN), elsewhere.live("sales", ANN)}) == 4
    assert ANN.encode() not in b"".join(
        key for (key,) in db.execute("SELECT value FROM keys").fetchall()
    )


async def test_the_secret_of_turns_is_kept_while_deliveries_wait(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))
    seen: list[Any] = []
    for _ in range(3):
        opened = await open_store(settings, clock=clock)
        if not seen:
            await accept(opened, event("a"), verdicts=[of_key("video 1")])
        elif len(seen) == 1:
            await settle_all(opened)
        seen += rows(opened, "SELECT value FROM keys WHERE name = 'turns'")
        await opened.close()
    assert seen[0] == seen[1] != seen[2]
