"""Turns in SQLite: their cost with a large backlog, and the events that pass them on."""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson
import pytest

from relay.core.config_values import Size
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store.ordering import OrderingKeys
from relay.store.replays import PlannedDelivery, Replay
from relay.store.rows import digest
from relay.store.selection import Selection
from relay.store.sqlite import accept as acceptance
from relay.store.sqlite import ordering, queries, schema, settle
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore, open_store
from relay.store.tiers import HELD_MS
from relay.store.totals import Totals
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event, ids, lease, settlement
from tests.store.ordering import HOUR_MS, of_key

if TYPE_CHECKING:
    from relay.store import Tier

FEW, MANY = 100, 20_000
ANN = "ann.lee@example.com"


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))
    opened = await open_store(settings, clock=clock)
    yield opened
    await opened.close()


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
    accepting = acceptance.Acceptance(db, made)
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


async def test_a_delivery_has_a_turn_only_while_it_is_pending(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"), verdicts=[of_key("video 1")])
    assert len(rows(store, "SELECT turn FROM deliveries WHERE turn IS NOT NULL")) == 2
    first = (await lease(store)).deliveries[0]
    await store.settle(settlement(first, "dead"))
    held = rows(store, "SELECT event FROM deliveries WHERE turn IS NOT NULL")
    assert held == [(first.seq + 1,)]
    await settle_all(store)
    assert rows(store, "SELECT turn FROM deliveries WHERE turn IS NOT NULL") == []


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


async def test_a_held_delivery_has_no_due_time(store: SqliteStore) -> None:
    await accept(store, event("a"), event("b"), verdicts=[of_key("video 1")])
    due = {
        each.id: each.deliveries[0].due_ms
        for each in await store.operations.events(Selection(), (), limit=9)
    }
    assert due == {"a": NOW_MS, "b": None}


def about(person: str, name: str) -> Event:
    made = event(name)
    body = orjson.dumps({"id": name, "event": made.kind, "data": {"email": person}})
    return Event(
        source="main",
        id=name,
        kind=made.kind,
        created_at=None,
        received_ms=NOW_MS,
        body=body,
        headers=b"",
    )


@pytest.mark.parametrize("erased", [["a"], ["b"], ["a", "b"], ["a", "c"], ["a", "b", "c"]])
async def test_an_erasure_releases_the_others_of_a_video(
    store: SqliteStore, erased: Sequence[str]
) -> None:
    made = [about(ANN if name in erased else "bob@example.com", name) for name in "abcd"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    (head,) = (await lease(store)).deliveries
    later = settlement(head, "retry", due_ms=NOW_MS + HOUR_MS)
    await store.settle(later)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    rest = [name for name in "abcd" if name not in erased]
    now_ms = NOW_MS + (HOUR_MS if "a" in rest else 0)
    assert await settle_all(store, now_ms=now_ms) == rest
    assert rows(store, "SELECT turn FROM deliveries WHERE turn IS NOT NULL") == []


async def test_an_event_erased_in_flight_passes_its_turn_on_once(store: SqliteStore) -> None:
    made = [about(ANN if name == "a" else "bob@example.com", name) for name in "abc"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    (head,) = (await lease(store)).deliveries
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    (following,) = (await lease(store)).deliveries
    await store.settle(settlement(head))
    assert (following.event.id, ids(await lease(store))) == ("b", [])
    await store.settle(settlement(following))
    assert ids(await lease(store)) == ["c"]


async def replayed(store: SqliteStore, *seqs: int, key: str | None = "video 1") -> Replay:
    until = await store.operations.newest()
    begun = await store.operations.begin(Selection(), total=len(seqs), until=until, now_ms=NOW_MS)
    wanted = [PlannedDelivery(seq, "sales", key) for seq in seqs]
    return await store.operations.open(begun, wanted, cursor=max(seqs), now_ms=NOW_MS)


async def test_a_replay_is_in_order_whatever_the_status_of_its_events(store: SqliteStore) -> None:
    await accept(store, event("missed"), verdicts=[])
    await accept(store, *map(event, "abc"), verdicts=[of_key("video 1")])
    for result in ("delivered", "dead", "delivered"):
        (each,) = (await lease(store)).deliveries
        await store.settle(settlement(each, result))
    await replayed(store, 4, 2, 1, 3)
    for name in ("missed", "a", "b", "c"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_the_steps_of_a_replay_and_a_second_one_keep_one_at_a_time(
    store: SqliteStore,
) -> None:
    await accept(store, *map(event, "abcd"), verdicts=[of_key("video 1")])
    await settle_all(store)
    first = await replayed(store, 3)
    wanted = [PlannedDelivery(4, "sales", "video 1")]
    await store.operations.open(first, wanted, cursor=4, now_ms=NOW_MS)
    await replayed(store, 1, 2)
    # The head stays, and may be in flight; the rest is in order.
    for name in ("c", "a", "b", "d"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_removing_a_waiting_delivery_releases_no_other(store: SqliteStore) -> None:
    made = [about(ANN if name == "b" else "bob@example.com", name) for name in "abcd"]
    await accept(store, *made, verdicts=[of_key("video 1")])
    await settle_all(store)
    await replayed(store, 4)
    await replayed(store, 1, 2, 3)
    await store.personal_data.erase(ANN, now_ms=NOW_MS)
    for name in ("d", "a", "c"):
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_live_events_do_not_wait_for_replayed_ones_nor_they_for_them(
    store: SqliteStore,
) -> None:
    await accept(store, *map(event, "ab"), verdicts=[of_key("video 1")])
    await settle_all(store)
    await replayed(store, 1, 2)
    await accept(store, *map(event, "cd"), verdicts=[of_key("video 1")])
    assert sorted(ids(await lease(store))) == ["a", "c"]


async def test_a_withdrawn_replay_releases_another(store: SqliteStore) -> None:
    await accept(store, event("missed"), verdicts=[])
    await accept(store, *map(event, "ab"), verdicts=[of_key("video 1")])
    await settle_all(store)
    cancelled = await replayed(store, 1, 2)
    await replayed(store, 3)
    await store.operations.end(cancelled, "cancelled", now_ms=NOW_MS)
    assert await settle_all(store) == ["b"]
    assert rows(store, "SELECT event, status, turn FROM deliveries") == [
        (2, "delivered", None),
        (3, "delivered", None),
    ]


async def test_unordered_deliveries_of_a_replay_are_ordered_with_the_rest(
    store: SqliteStore,
) -> None:
    await accept(store, *map(event, "abc"), verdicts=[of_key(None)])
    await settle_all(store)
    begun = await replayed(store, 1, 2, key=None)
    wanted = [PlannedDelivery(seq, "sales", "video 1") for seq in (1, 2, 3)]
    await store.operations.open(begun, wanted, cursor=3, now_ms=NOW_MS)
    for name in "abc":
        (each,) = (await lease(store)).deliveries
        assert each.event.id == name
        await store.settle(settlement(each))


async def test_a_sink_that_becomes_ordered_orders_new_events(store: SqliteStore) -> None:
    await accept(store, *map(event, "ab"), verdicts=[of_key(None)])
    await accept(store, *map(event, "cd"), verdicts=[of_key("video 1")])
    await accept(store, *map(event, "ef"), verdicts=[of_key("viewer x")])
    await accept(store, event("g"), verdicts=[Verdict("sales", "takes", "")])
    assert sorted(ids(await lease(store))) == ["a", "b", "c", "e", "g"]
