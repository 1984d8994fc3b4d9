"""Operators' queries and changes in PostgreSQL: writes that run twice, several relays, odd text."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import psycopg
import pytest
from msgspec import structs
from msgspec.structs import fields
from psycopg import sql

from relay.store import Store, dead_letters, replays
from relay.store.ownership import MAINTENANCE
from relay.store.postgres import conditions, operator_writes, search
from relay.store.postgres import dead_letters as postgres_dead_letters
from relay.store.postgres.dialect import translated
from relay.store.postgres.driver import Database
from relay.store.postgres.opening import open_store
from relay.store.postgres.shared import Shared
from relay.store.replays import Opening, PlannedDelivery
from relay.store.search import Listed
from relay.store.selection import Selection
from relay.store.sql import Condition, Sql
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, lease
from tests.store.places import OnlyRelay, PostgresPlace
from tests.store.test_operations import ROUTES, event, replay, settle, statuses

if TYPE_CHECKING:
    from relay.store.postgres.store import PostgresStore


class Owner(OnlyRelay):
    """Owns some sinks."""

    def __init__(self, *sinks: str) -> None:
        self._sinks = sinks

    def holds(self, sink: str) -> bool:
        return sink in self._sinks


@asynccontextmanager
async def owning(place: PostgresPlace, clock: ManualClock, *sinks: str) -> AsyncIterator[Store]:
    """Open the store for a relay that owns sinks."""
    store = await open_store(place.settings(), clock=clock, fences=Owner(*sinks))
    for sink in sinks:
        place.rows("INSERT INTO relay.ownership (sink, expires_at) VALUES (%s, 'infinity')", sink)
    try:
        yield cast("Store", store)
    finally:
        await store.close()


@pytest.fixture(autouse=True)
def _short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.postgres.withdrawals.SWEEP_S", 0.01)


def shared(store: Store) -> Shared:
    return cast("PostgresStore", store)._shared


async def twice(store: Store, work: Callable[[Database], Any]) -> list[Any]:
    """Run a write as after a commit whose outcome is unknown."""
    return [await shared(store).background.transact(work) for _ in range(2)]


async def until(store: Store, expected: dict[tuple[str, str], str]) -> None:
    async with asyncio.timeout(10):
        while await statuses(store) != expected:
            await asyncio.sleep(0.01)


async def test_a_replay_that_is_begun_twice_is_one_replay(store: Store) -> None:
    mark = await store.events.newest()
    number = await shared(store).draw("replays")
    values = {"id": number, "now": NOW_MS, "selection": "{}", "total": 1, "until": 0, "attempt": 0}
    first, second = await twice(store, lambda db: replays.begin(db, values))
    assert first == second
    assert await store.replays.newest(before=None, limit=9) == [first]
    another = await store.replays.begin(Selection(), total=1, until=mark, now_ms=NOW_MS)
    assert another.id > first.id


async def test_a_write_that_runs_twice_says_each_time_what_was_done(store: Store) -> None:
    await accept(store, event("a"), event("b"))
    await settle(store, "dead")
    letters = [(1, "sales")]
    assert await twice(store, lambda db: postgres_dead_letters.discard(db, letters, NOW_MS)) == [
        1,
        1,
    ]
    begun = await replay(store, Selection(), 1)
    step = Opening(begun.id, [PlannedDelivery(2, "sales", "key")], 2, NOW_MS)
    opened = await twice(
        store, lambda db: operator_writes.open_deliveries(db, step, shared(store).turns)
    )
    assert [each.opened for each in opened] == [2, 2]
    given_up = await twice(
        store, lambda db: postgres_dead_letters.give_up(db, 2, "sales", now_ms=NOW_MS + 1)
    )
    assert given_up == [True, True]
    assert not await store.dead_letters.give_up(1, "crm", now_ms=NOW_MS)


async def test_each_owner_withdraws_deliveries_that_are_not_in_flight(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with (
        owning(postgres_place, clock, "sales") as one,
        owning(postgres_place, clock, "crm") as other,
    ):
        await accept(one, event("a"), event("b"), verdicts=[TAKES, OTHER])
        await settle(one)
        await settle(other, sink="crm")
        begun = await replay(one, Selection(), 1, 2)
        begun = await replay_more(one, begun.id, 1, sink="crm")
        (flying, *_) = (await lease(one, limit=1)).deliveries
        await other.replays.end(begun, "cancelled", now_ms=NOW_MS)
        done = dict.fromkeys((await statuses(one)), "delivered")
        await until(one, done | {(flying.event.id, "sales"): "pending"})
        one.release([flying])
        await until(one, done)
        ended = await other.replays.one(begun.id)
        assert ended is not None
        assert (ended.state, ended.opened) == ("cancelled", 0)


async def replay_more(store: Store, number: int, seq: int, *, sink: str) -> Any:
    running = await store.replays.one(number)
    assert running is not None
    planned = [PlannedDelivery(seq, sink)]
    return await store.replays.open(running, planned, cursor=seq, now_ms=NOW_MS)


async def test_deliveries_of_sinks_without_an_owner_are_withdrawn_by_the_cancelling_relay(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with owning(postgres_place, clock, "crm") as store:
        await accept(store, event("a"), verdicts=[])
        begun = await replay(store, Selection(), 1, sink="gone")
        ended = await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
        assert ended.opened == 0
        assert await statuses(store) == {}


async def test_many_are_withdrawn_in_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.store.postgres.withdrawals.STEP_ROWS", 3)
    await accept(store, *(event(f"e{n}") for n in range(10)), verdicts=[TAKES, OTHER])
    await settle(store)
    await settle(store, sink="crm")
    begun = await replay(store, Selection(), *range(1, 11))
    for seq in range(1, 11):
        begun = await replay_more(store, begun.id, seq, sink="crm")
    assert begun.opened == 20
    ended = await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    assert ended.opened == 0
    assert set((await statuses(store)).values()) == {"delivered"}


async def test_concurrent_writes_stop_no_sweep(store: Store, postgres_place: PostgresPlace) -> None:
    await accept(store, event("a"))
    await settle(store)
    begun = await replay(store, Selection(), 1)
    # As another relay does it that then ends.
    postgres_place.rows("UPDATE relay.replays SET state = 'cancelled' WHERE id = %s", begun.id)
    await until(store, {("a", "sales"): "delivered"})


TEXTS = [each.name for each in fields(Selection) if each.type == str | None]


@pytest.mark.parametrize("name", TEXTS)
async def test_text_that_cannot_be_stored_fails_no_query(store: Store, name: str) -> None:
    await accept(store, event("a"))
    await settle(store, "dead", reason="refused")
    text: dict[str, Any] = {name: "a\0\ud800"}
    odd = Selection(**text)
    mark = await store.events.newest()
    assert await store.events.page(odd, ROUTES, limit=9) == []
    assert await store.dead_letters.newest(odd, limit=9) == []
    assert await store.dead_letters.reasons(odd) == []
    assert await store.dead_letters.discard(odd, now_ms=NOW_MS) == 0
    assert await store.replays.choose(odd, ROUTES, after=0, until=mark, limit=9) == []
    assert await store.events.named("a\0\ud800", source="\0", limit=9) == []
    assert not await store.events.has_kind("\0\ud800")
    assert not await store.dead_letters.give_up(1, "\0\ud800", now_ms=NOW_MS)
    assert (await store.search.find(odd, ROUTES, limit=9, budget_s=9)).events == []
    assert (await store.search.count(odd, ROUTES, budget_s=9)).events == 0


@pytest.mark.parametrize(
    "name",
    [rb'"\u0000"', rb'"\\\u0000\u0000"', rb'"\ud800"', rb'"\ud83d\ude00"', b"1e999999", b'"\\\\"'],
)
async def test_a_character_that_cannot_be_stored_hides_no_other_value_of_the_body(
    store: Store, name: bytes
) -> None:
    body = b'{"data":{"name":%s,"email":"ada\\u0040example.com","video":{"id":"v"}}}' % name
    await accept(store, structs.replace(event("odd"), body=body), event("plain"))
    for selection in (Selection(email="Ada@Example.com"), Selection(video="v")):
        found = await store.events.page(selection, ROUTES, limit=9)
        assert [each.id for each in found] == ["odd"]


@pytest.mark.parametrize(("rows", "size"), [(2, 1 << 20), (500, 1)])
async def test_missed_events_are_found_in_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    monkeypatch.setattr(conditions, "STEP_ROWS", rows)
    monkeypatch.setattr(conditions, "STEP_BYTES", size)
    await accept(store, *(event(f"e{n}") for n in range(9)))
    await accept(store, event("both"), verdicts=[TAKES, OTHER])
    selection = Selection(outcome="missed", sink="crm")
    found = await store.events.page(selection, ROUTES, limit=7)
    assert [each.id for each in found] == [f"e{n}" for n in range(8, 1, -1)]
    mark = await store.events.newest()
    chosen = await store.replays.choose(selection, ROUTES, after=2, until=mark, limit=5)
    assert [each.seq for each in chosen] == [3, 4, 5, 6, 7]
    assert (await store.search.count(selection, ROUTES, budget_s=9)).events == 9


async def test_a_step_of_a_replay_ends_when_its_bodies_are_large(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.postgres.replays._STEP_BYTES", 200)
    await accept(store, *(event(f"e{n}", {"x": "x" * 90}) for n in range(5)))
    mark = await store.events.newest()
    chosen = await store.replays.choose(Selection(), ROUTES, after=0, until=mark, limit=9)
    assert [each.seq for each in chosen] == [1, 2]


_LISTED = Listed(
    "main.deliveries", "event", Condition("sink = :sink AND status = 'dead'", {"sink": "a"})
)
_WITHIN = _LISTED.within(range(9))
_OF_ONE = {"sink": "a", "up_to": 9, "limit": 9}


@pytest.mark.parametrize(
    ("text", "values", "index"),
    [
        (dead_letters._NEWEST.by({}), _OF_ONE, "deliveries_dead"),
        (dead_letters._KEYS.by({}), _OF_ONE, "deliveries_dead"),
        *zip(dead_letters.DEAD.values(), repeat({}), ["deliveries_dead"]),
        *zip(
            search._PENDING.values(),
            repeat({}),
            ["deliveries_due", "deliveries_replayed", "deliveries_tried"],
        ),
        (search._SOURCES, {}, "events_source_id_key"),
        (operator_writes._OF_CANCELLED, (1, 0, 9), "deliveries_of_replay"),
        (Sql(_WITHIN.sql), _WITHIN.values, "deliveries_dead"),
    ],
)
async def test_frequent_reads_use_an_index(
    store: Store,
    postgres_place: PostgresPlace,
    text: str,
    values: Any,
    index: str,
) -> None:
    del store
    name = sql.Identifier(postgres_place.schema).as_string()
    postgres_place.rows("""INSERT INTO relay.deliveries (event, sink, status, due_at, settled_at)
    SELECT n, 'a', 'dead', n, n FROM generate_series(1, 2000) AS n""")
    postgres_place.rows("ANALYZE relay.deliveries")
    native = translated(text) if isinstance(text, Sql) else text
    # Of an empty table, and of a small one, every plan is as good.
    options = "-c enable_seqscan=off -c enable_bitmapscan=off"
    with psycopg.connect(postgres_place.server.dsn, options=options) as db:
        asked = f"EXPLAIN {native.replace('relay.', f'{name}.')}".encode()
        plan = "\n".join(line for (line,) in db.execute(asked, values))
    assert f"using {index}" in plan
    assert "Seq Scan" not in plan


async def test_a_close_does_not_wait_for_a_search(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)'"
    async with asyncio.timeout(10), postgres_place.open(clock) as store:
        searches = [
            asyncio.create_task(each.read(lambda db: db.execute("SELECT pg_sleep(600)").fetchall()))
            for each in (shared(store).pager, shared(store).searcher, shared(store).reader)
        ]
        while postgres_place.rows(running) != [(3,)]:
            await asyncio.sleep(0.01)
        for search in searches:
            search.cancel()


async def test_one_relay_counts_what_is_left_of_a_sink_that_no_config_names(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with (
        owning(postgres_place, clock, "sales") as one,
        owning(postgres_place, clock, MAINTENANCE) as other,
    ):
        await accept(one, event("a"), verdicts=[TAKES, OTHER])
        await one.backlogs()
        assert postgres_place.rows("SELECT sink FROM relay.backlogs") == [("sales",)]
        postgres_place.rows("UPDATE relay.ownership SET holder = %s", uuid4())
        assert set(await other.backlogs()) == {"sales", "crm"}
        postgres_place.rows("UPDATE relay.backlogs SET pending = 7")
        clock.ms += 60_000
        backlogs = await other.backlogs()
        # The owner counts its own.
        assert {sink: each.pending for sink, each in backlogs.items()} == {"sales": 7, "crm": 1}
