"""How walks over due deliveries go on, and what they find nevertheless."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest

from relay.core.clock import SystemClock
from relay.core.errors import StoreUnavailable
from relay.store import LeasedBatch, Store
from relay.store.postgres import due_queries as queries
from relay.store.postgres import leases
from relay.store.postgres.due_queries import DueDeliveries
from relay.store.postgres.leases import COST_FACTOR, LAG_MS, PATIENCE_S, START, Walk
from relay.store.tiers import Position
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, accept, event, ids, lease, settlement
from tests.store.ordering import of_key
from tests.store.places import PostgresPlace

Started = Callable[[Store], Awaitable[asyncio.Task[LeasedBatch]]]


def at(due_ms: int, event: int = 0) -> Position:
    return Position(NOW_MS + due_ms, event)


class TestWalk:
    def test_the_first_walk_begins_at_the_beginning(self) -> None:
        assert Walk().next(0.0, now_ms=NOW_MS) == START

    def test_a_stopped_walk_goes_on(self) -> None:
        walk = Walk()
        walk.next(0.0, now_ms=NOW_MS)
        walk.stopped(at(-500, 7), now_ms=NOW_MS)
        assert walk.next(PATIENCE_S - 1, now_ms=NOW_MS) == at(-500, 7)

    def test_the_next_walk_begins_before_transactions_that_may_still_commit(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=1.0, now_s=1.0)
        walk.ended(at(-10, 7), now_ms=NOW_MS)
        assert walk.next(2.0, now_ms=NOW_MS) == at(-LAG_MS)

    def test_a_walk_over_an_old_backlog_begins_where_the_last_one_ended(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=1.0, now_s=1.0)
        walk.ended(at(-60_000, 7), now_ms=NOW_MS)
        assert walk.next(2.0, now_ms=NOW_MS) == at(-60_000, 7)

    def test_the_whole_tier_is_walked_over_again_as_its_cost_allows(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=0.1, now_s=1.0)
        assert walk.ended(at(-10, 7), now_ms=NOW_MS) is None
        again_s = 1.0 + 0.1 * COST_FACTOR
        assert walk.next(again_s - 0.1, now_ms=NOW_MS) == at(-LAG_MS)
        assert walk.ended(at(-10, 7), now_ms=NOW_MS) == again_s
        assert walk.next(again_s, now_ms=NOW_MS) == START

    def test_a_walk_over_the_whole_tier_in_several_reads_is_followed_by_another(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=0.1, now_s=0.1)
        walk.stopped(at(-500, 7), now_ms=NOW_MS)
        # Meanwhile an older delivery may be committed behind it.
        walk.next(1.0, now_ms=NOW_MS)
        assert walk.ended(at(-10, 9), now_ms=NOW_MS) == 0.1 + 0.1 * COST_FACTOR
        assert walk.next(0.1 + 0.1 * COST_FACTOR, now_ms=NOW_MS) == START
        assert walk.ended(at(-10, 9), now_ms=NOW_MS) is None

    def test_a_walk_under_way_restarts_at_growing_intervals(self) -> None:
        walk, now_s = Walk(), 0.0
        walk.next(now_s, now_ms=NOW_MS)
        for times in (1, 2, 4):
            walk.stopped(at(-1, 7), now_ms=NOW_MS)
            now_s += times * PATIENCE_S
            assert walk.next(now_s - 0.1, now_ms=NOW_MS) == at(-1, 7)
            assert walk.next(now_s, now_ms=NOW_MS) == START

    def test_a_walk_ends_where_it_has_passed_the_time_of_its_beginning(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=0.1, now_s=0.1)
        walk.stopped(at(0, 7), now_ms=NOW_MS + 9000)
        assert walk.next(1.0, now_ms=NOW_MS + 9000) == at(0, 7)
        walk.stopped(at(8999, 8), now_ms=NOW_MS + 9000)
        assert walk.next(1.1, now_ms=NOW_MS + 9100) == at(9000 - LAG_MS)
        walk.stopped(at(9101, 9), now_ms=NOW_MS + 9200)
        assert walk.next(0.1 + 0.1 * COST_FACTOR, now_ms=NOW_MS + 9200) == START

    def test_a_walk_that_ends_goes_back_to_what_became_due_behind_it_during_a_read(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=1.0, now_s=1.0)
        walk.include(at(-9000, 3))
        walk.stopped(at(10, 7), now_ms=NOW_MS + 20)
        assert walk.next(2.0, now_ms=NOW_MS + 20) == at(-9000, 2)

    def test_a_delivery_that_is_due_again_is_included(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=1.0, now_s=1.0)
        walk.stopped(at(-100, 7), now_ms=NOW_MS)
        walk.include(at(-300, 3))
        assert walk.next(2.0, now_ms=NOW_MS) == at(-300, 2)
        walk.ended(at(-100, 7), now_ms=NOW_MS)
        walk.include(at(-9000, 3))
        assert walk.next(2.0, now_ms=NOW_MS) == at(-9000, 2)

    def test_a_walk_goes_back_once_to_what_became_due_behind_it_during_a_read(self) -> None:
        walk = Walk()
        walk.read(walk.next(0.0, now_ms=NOW_MS), took_s=1.0, now_s=1.0)
        walk.include(at(-9000, 3))
        walk.stopped(at(-100, 7), now_ms=NOW_MS)
        assert walk.next(2.0, now_ms=NOW_MS) == at(-9000, 2)
        walk.stopped(at(-100, 7), now_ms=NOW_MS)
        assert walk.next(2.0, now_ms=NOW_MS) == at(-100, 7)


async def test_a_delivery_that_is_committed_late_is_found(postgres_place: PostgresPlace) -> None:
    clock = SystemClock()
    async with postgres_place.open(clock) as store:
        now_ms = clock.now_ms()
        await accept(store, *(event(f"e{number}", at_ms=now_ms) for number in range(50)))
        found = await lease(store, now_ms=clock.now_ms())
        await store.settle(*map(settlement, found.deliveries))
        await accept(store, event("late", at_ms=now_ms - 60_000))
        async with asyncio.timeout(60):
            while not (found := await lease(store, now_ms=clock.now_ms())).deliveries:
                assert found.next_due_ms is not None, "the dispatcher would not read again"
                await asyncio.sleep(0.01)
        assert ids(found) == ["late"]


async def test_a_lease_passes_over_many_deliveries_of_one_key_in_steps(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    line = [event(f"a{number:03}") for number in range(queries._WINDOWS[0] * 3)]
    async with postgres_place.open(clock) as store:
        await accept(store, *line, verdicts=[of_key("video 1")])
        await accept(store, event("b"), verdicts=[of_key("video 2")])
        taken = []
        for _ in range(9):
            found = await lease(store, limit=8)
            taken += ids(found)
            if found.next_due_ms != NOW_MS:
                break
        assert taken == ["a000", "b"]
        # Something may have been committed behind a walk of several reads.
        assert found.next_due_ms is not None
        assert found.next_due_ms > NOW_MS


def test_walks_over_a_long_line_take_a_small_share_of_the_time() -> None:
    walk, now_s, reading_s = Walk(), 0.0, 0.0
    for _ in range(2000):
        behind = walk.next(now_s, now_ms=NOW_MS)
        if behind.event < 100:
            now_s, reading_s = now_s + 0.01, reading_s + 0.01
            walk.read(behind, took_s=0.01, now_s=now_s)
            walk.stopped(Position(NOW_MS, max(behind.event, 0) + 1), now_ms=NOW_MS)
            continue
        walk.read(behind, took_s=0.0, now_s=now_s)
        again_s = walk.ended(behind, now_ms=NOW_MS)
        assert again_s is not None
        now_s = max(now_s, again_s)
    assert reading_s < 0.1 * now_s


async def test_an_event_accepted_late_waits_for_the_later_one_of_its_key(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    """Two relays accept the same key at once: the larger number is committed first."""
    async with postgres_place.open(clock) as store:
        schema = postgres_place.schema
        # As another relay does whose commit takes long.
        with closing(psycopg.connect(postgres_place.server.dsn)) as other:
            number = other.execute(
                f"SELECT nextval('\"{schema}\".events_seq_seq')".encode()
            ).fetchone()
            assert number is not None
            await accept(store, event("later"), verdicts=[of_key("video 1")])
            (later,) = (await lease(store)).deliveries
            other.execute(
                f"""
                INSERT INTO "{schema}".events
                    (seq, source, id, kind, received_at, digest, headers, body)
                SELECT %s, source, 'early', kind, received_at, digest, headers, body
                FROM "{schema}".events
                """.encode(),
                number,
            )
            other.execute(
                f"""
                INSERT INTO "{schema}".deliveries (event, sink, status, due_at, turn)
                SELECT %s, 'sales', 'pending', due_at, turn FROM "{schema}".deliveries
                """.encode(),
                number,
            )
            other.commit()
        assert later.seq > number[0]
        assert (await lease(store)).deliveries == ()
        await store.settle(settlement(later))
        assert ids(await lease(store)) == ["early"]


async def test_deliveries_of_one_read_are_free_again_if_the_next_read_fails(
    postgres_place: PostgresPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> DueDeliveries:
        raise StoreUnavailable("the database is away")

    async with postgres_place.open(clock) as store:
        await accept(store, event("a"), event("b"), verdicts=[of_key("video 1")])
        (first,) = (await lease(store)).deliveries
        await store.settle(settlement(first))
        with monkeypatch.context() as patch:
            patch.setattr(queries, "due_pages", fail)
            with pytest.raises(StoreUnavailable):
                await lease(store)
        assert ids(await lease(store)) == ["b"]


async def test_due_times_that_another_relay_changed_are_found(
    postgres_place: PostgresPlace, clock: ManualClock
) -> None:
    async with postgres_place.open(clock) as owner, postgres_place.open(clock) as other:
        await accept(owner, event("a"), event("b"))
        first, second = (await lease(owner)).deliveries
        later_ms = NOW_MS + 3_600_000
        await owner.settle(settlement(first, "retry", due_ms=later_ms), settlement(second, "retry"))
        assert ids(await lease(owner)) == ["b"]
        await other.bring_forward("sales", beyond_ms=NOW_MS, to_ms=NOW_MS, now_ms=NOW_MS)
        assert ids(await lease(owner)) == ["a"]


def only_one_whole_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "COST_FACTOR", 1e9)


@asynccontextmanager
async def during_a_read(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Started]:
    """Let reads that are started in the block end after it."""
    read, go_on = threading.Event(), threading.Event()
    due_pages = queries.due_pages

    def wait(*arguments: Any) -> DueDeliveries:
        found = due_pages(*arguments)
        read.set()
        assert go_on.wait(60)
        return found

    async def start(store: Store) -> asyncio.Task[LeasedBatch]:
        under_way = asyncio.create_task(lease(store))
        assert await asyncio.to_thread(read.wait, 60)
        return under_way

    with monkeypatch.context() as patch:
        patch.setattr(queries, "due_pages", wait)
        try:
            yield start
        finally:
            go_on.set()


async def test_due_times_that_change_during_a_read_are_read_again(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_one_whole_walk(monkeypatch)
    async with postgres_place.open(SystemClock()) as store:
        await accept(store, event("a"))
        (first,) = (await lease(store)).deliveries
        await store.settle(settlement(first, "retry", due_ms=NOW_MS + 3_600_000))
        assert ids(await lease(store)) == []
        async with during_a_read(monkeypatch) as start:
            under_way = await start(store)
            await store.bring_forward(
                "sales", beyond_ms=NOW_MS, to_ms=NOW_MS, now_ms=NOW_MS, only=first.seq
            )
        assert (await under_way).next_due_ms == NOW_MS
        assert ids(await lease(store)) == ["a"]


async def test_deliveries_that_are_released_during_a_read_are_read_again(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_one_whole_walk(monkeypatch)
    async with postgres_place.open(SystemClock()) as store:
        await accept(store, event("a"), event("b"))
        leased = (await lease(store)).deliveries
        async with during_a_read(monkeypatch) as start:
            under_way = await start(store)
            store.release(leased)
        assert (await under_way).next_due_ms == NOW_MS
        assert ids(await lease(store)) == ["a", "b"]


async def test_backlogs_and_totals_are_those_of_all_relays(postgres_place: PostgresPlace) -> None:
    clock, other_clock = ManualClock(), ManualClock()
    counted: list[int] = []
    async with postgres_place.open(clock) as one, postgres_place.open(other_clock) as other:
        await accept(one, event("a"), event("b"))
        await accept(other, event("c"), verdicts=[OTHER])
        assert {sink: each.pending for sink, each in (await one.backlogs()).items()} == {
            "sales": 2,
            "crm": 1,
        }
        assert await other.backlogs() == await one.backlogs()
        clock.ms += 10_000
        await one.backlogs()
        counted = [total.events for total in one.totals("main")]
    assert counted == [3]
