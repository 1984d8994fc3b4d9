"""Failures of a real server in the middle of writes: nothing acknowledged is lost, nothing wrong.

A commit is held up by a standby that does not exist: the server then waits for it for ever.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from itertools import count

import psycopg
import pytest
from msgspec.structs import replace

from relay.core.clock import SystemClock
from relay.core.errors import StoreFull, StoreUnavailable
from relay.store import Store
from relay.store.postgres import errors, write_queue
from tests.postgres.server import PostgresServer
from tests.store.conformance import TAKES, accept, event, lease, settlement
from tests.store.places import PostgresPlace

DEADLINE_S = 60.0
SENDERS = 20
SECONDS = 1.5
"""Time of a load, in which something happens to the server."""


@pytest.fixture
def own_place(own_server: PostgresServer) -> PostgresPlace:
    return PostgresPlace(own_server)


def await_standby(server: PostgresServer, name: str) -> None:
    """Let commits wait for a standby of that name, or for none."""
    server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    server.execute("SELECT pg_reload_conf()")
    while name and not _holds_up(server):
        time.sleep(0.01)


def _holds_up(server: PostgresServer) -> bool:
    """Whether the server has taken the setting over: a commit of our own waits for the standby."""
    with closing(psycopg.connect(server.dsn, autocommit=True)) as connection:
        pid = connection.info.backend_pid
        connection.pgconn.send_query(b"SELECT pg_logical_emit_message(true, '', '')")
        sql = f"SELECT state, coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = {pid}"
        while (found := server.execute(sql)[0]) not in (
            ("active", "SyncRep"),
            ("idle", "ClientRead"),
        ):
            assert found[0] in ("active", "idle"), found
    waits = found[1] == "SyncRep"
    server.execute(f"SELECT pg_terminate_backend({pid})")
    while server.execute(sql):
        time.sleep(0.01)
    return waits


async def until(condition: Callable[[], bool], *, what: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)
    assert condition(), what


def commits_waiting(server: PostgresServer) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return int(str(server.execute(sql)[0][0]))


def stored_ids(place: PostgresPlace) -> set[str]:
    return {event_id for (event_id,) in place.rows("SELECT id FROM relay.events")}


@asynccontextmanager
async def load(store: Store) -> AsyncIterator[Counter[str]]:
    """Accept events from several senders that repeat refused ones, and count the answers."""
    answers: Counter[str] = Counter()
    numbers = count()
    ending = asyncio.Event()

    async def send() -> None:
        while not ending.is_set():
            made = event(f"load {next(numbers)}")
            while True:
                try:
                    answers[await store.accept(made, [TAKES], lambda _: None)] += 1
                except StoreUnavailable:
                    answers["refused"] += 1
                    await asyncio.sleep(0.05)
                else:
                    break

    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(send())
        yield answers
        await asyncio.sleep(SECONDS / 3)
        ending.set()


@pytest.mark.long
@pytest.mark.parametrize("harm", ["kill", "restart", "terminate"])
async def test_no_acknowledged_event_is_lost_when_the_server_dies(
    own_place: PostgresPlace, harm: str
) -> None:
    server = own_place.server
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'relay'"
    async with own_place.open(SystemClock()) as store:
        async with load(store) as answers:
            await asyncio.sleep(SECONDS / 3)
            before = answers["accepted"]
            if harm == "terminate":
                await asyncio.to_thread(server.execute, sql)
            else:
                await asyncio.to_thread(server.stop, _SIGNALS[harm])
                await asyncio.to_thread(server.start)
        answered = answers["accepted"] + answers["duplicate"]
        assert answers["accepted"] > before > 0
        assert len(stored_ids(own_place)) == answered
        backlog = (await store.backlogs())["sales"]
        assert backlog.pending == answered


_SIGNALS = {"kill": signal.SIGKILL, "restart": signal.SIGQUIT}


async def test_terminated_connections_fail_no_write(own_place: PostgresPlace) -> None:
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'relay'"
    async with own_place.open(SystemClock()) as store:
        async with load(store) as answers:
            for _ in range(5):
                await asyncio.to_thread(own_place.server.execute, sql)
                # All senders twice more, so that none is still at what the last one cut off.
                enough = answers["accepted"] + 3 * SENDERS
                await until(lambda: answers["accepted"] > enough, what="events are accepted")  # noqa: B023
        assert answers["refused"] == 0


async def test_outcomes_of_attempts_survive_lost_connections_without_a_second_record(
    own_place: PostgresPlace,
) -> None:
    sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'relay'"
    async with own_place.open(SystemClock()) as store:
        await accept(store, *(event(f"e{number}") for number in range(200)))
        found = (await lease(store, limit=200)).deliveries
        writes = [asyncio.ensure_future(store.settle(settlement(each))) for each in found[:100]]
        await asyncio.to_thread(own_place.server.execute, sql)
        writes += [asyncio.ensure_future(store.settle(settlement(each))) for each in found[100:]]
        await asyncio.gather(*writes)
        assert (await store.backlogs())["sales"].pending == 0
        assert own_place.rows("SELECT count(*) FROM relay.attempts") == [(200,)]


async def test_a_commit_that_the_server_died_in_is_acknowledged_only_after_another_write(
    own_place: PostgresPlace,
) -> None:
    server = own_place.server
    async with own_place.open(SystemClock()) as store:
        await asyncio.to_thread(await_standby, server, "nobody")
        accepting = asyncio.create_task(store.accept(event("a"), [TAKES], lambda _: None))
        await until(lambda: commits_waiting(server) == 1, what="the commit waits")
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailable):
            await accepting
        await asyncio.to_thread(server.start)
        # The row is there after the recovery, but a look at it is no proof.
        assert stored_ids(own_place) == {"a"}
        again = asyncio.create_task(store.accept(event("a"), [TAKES], lambda _: None))
        await until(lambda: commits_waiting(server) == 1, what="it waits again")
        assert not again.done()
        await asyncio.to_thread(await_standby, server, "")
        assert await again == "duplicate"


async def test_a_commit_cut_off_with_its_connection_is_followed_by_another_write(
    own_place: PostgresPlace,
) -> None:
    server = own_place.server
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    async with own_place.open(SystemClock()) as store:
        await asyncio.to_thread(await_standby, server, "nobody")
        told: list[str] = []
        accepting = asyncio.create_task(store.accept(event("a"), [TAKES], told.append))
        await until(lambda: commits_waiting(server) == 1, what="the commit waits")
        await asyncio.to_thread(server.execute, end)
        await until(lambda: stored_ids(own_place) == {"a"}, what="the row is there")
        await until(lambda: commits_waiting(server) == 1, what="it waits again")
        assert not accepting.done()
        await asyncio.to_thread(await_standby, server, "")
        assert await accepting == "duplicate"
        assert told == ["duplicate"]


async def test_a_duplicate_is_answered_only_after_a_write_of_its_own(
    own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "PATIENCE_S", 0.5)
    async with own_place.open(SystemClock()) as store:
        await accept(store, event("a"))
        await asyncio.to_thread(await_standby, own_place.server, "nobody")
        for seed in (0, 9):
            with pytest.raises(StoreUnavailable, match="not answer"):
                await store.accept(event("a", seed=seed), [TAKES], lambda _: None)
        await asyncio.to_thread(await_standby, own_place.server, "")
        async with asyncio.timeout(DEADLINE_S):
            while True:
                # Refused at once, as long as the last one is being done again.
                with suppress(StoreUnavailable):
                    answers = await accept(store, event("a"), event("a", seed=9))
                    break
                await asyncio.sleep(0.01)
        assert answers == ["duplicate", "conflict"]


async def test_a_cancelled_wait_for_the_standby_is_not_a_success(
    own_place: PostgresPlace,
) -> None:
    server = own_place.server
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    async with own_place.open(SystemClock()) as store:
        await asyncio.to_thread(await_standby, server, "nobody")
        accepting = asyncio.create_task(store.accept(event("a"), [TAKES], lambda _: None))
        await until(lambda: commits_waiting(server) == 1, what="the commit waits")
        await asyncio.to_thread(server.execute, cancel)
        await until(lambda: stored_ids(own_place) == {"a"}, what="the row is there")
        await until(lambda: commits_waiting(server) == 1, what="it waits again")
        assert not accepting.done()
        await asyncio.to_thread(await_standby, server, "")
        assert await accepting == "duplicate"


async def test_a_server_that_hangs_is_answered_503_and_nothing_is_lost(
    own_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "PATIENCE_S", 0.5)
    server = own_place.server
    async with own_place.open(SystemClock()) as store:
        await accept(store, event("a"))
        server.freeze()
        try:
            first = asyncio.create_task(store.accept(event("b"), [TAKES], lambda _: None))
            await asyncio.sleep(0)
            later = asyncio.create_task(store.accept(event("c"), [TAKES], lambda _: None))
            for each in (first, later):
                with pytest.raises(StoreUnavailable, match="not answered for"):
                    await each
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await store.accept(event("d"), [TAKES], lambda _: None)
        finally:
            server.thaw()
        async with asyncio.timeout(DEADLINE_S):
            while await _is_refused(store):
                await asyncio.sleep(0.05)
        assert set(await accept(store, event("b"), event("c"))) <= {"accepted", "duplicate"}
        assert stored_ids(own_place) == {"a", "b", "c", "d"}


async def _is_refused(store: Store) -> bool:
    try:
        await store.accept(event("d"), [TAKES], lambda _: None)
    except StoreUnavailable:
        return True
    return False


async def test_relays_that_accept_the_same_events_in_opposite_orders_never_deadlock(
    postgres_place: PostgresPlace,
) -> None:
    events = [event(f"e{number}") for number in range(150)]
    sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = postgres_place.rows(sql)
    async with (
        postgres_place.open(SystemClock()) as one,
        postgres_place.open(SystemClock()) as other,
    ):
        outcomes = await asyncio.gather(accept(one, *events), accept(other, *reversed(events)))
    assert Counter(outcomes[0] + outcomes[1]) == {"accepted": 150, "duplicate": 150}
    assert postgres_place.rows(sql) == before


async def test_a_deadlock_with_another_program_is_tried_again(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(SystemClock()) as store:
        await accept(store, event("a"), event("b"))
        first, second = sorted((await lease(store)).deliveries, key=lambda each: each.seq)
        with closing(psycopg.connect(postgres_place.server.dsn)) as other:
            lock = f'SELECT 1 FROM "{postgres_place.schema}".deliveries WHERE event = %s FOR UPDATE'
            # The store's statement finds the deadlock first, and is the one that gives way.
            other.execute("SET deadlock_timeout = '30s'")
            other.execute(lock.encode(), (second.seq,))
            settling = asyncio.create_task(store.settle(settlement(first), settlement(second)))
            waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            await until(lambda: bool(postgres_place.server.execute(waits)), what="it waits")
            await asyncio.to_thread(other.execute, lock.encode(), (first.seq,))
            other.rollback()
            await settling
        assert (await store.backlogs())["sales"].pending == 0
        assert postgres_place.rows("SELECT count(*) FROM relay.attempts") == [(2,)]


async def test_an_event_that_the_server_refuses_does_not_fail_its_batch(
    postgres_place: PostgresPlace,
) -> None:
    async with postgres_place.open(SystemClock()) as store:
        names = ["a\0b", "\ud800", "".join(map(chr, range(0x4E00, 0x6E00)))]
        odd = [replace(event(), id=name) for name in names]
        mixed = [event("before"), odd[0], event("between"), odd[1], odd[2], event("after")]
        answers = await asyncio.gather(
            *(store.accept(each, [TAKES], lambda _: None) for each in mixed), return_exceptions=True
        )
        refused = [isinstance(each, StoreUnavailable) for each in answers]
        assert refused == [False, True, False, True, True, False]
        assert stored_ids(postgres_place) == {"before", "between", "after"}


def test_a_full_disk_is_distinguished_from_other_errors() -> None:
    full = errors.classify(psycopg.errors.DiskFull())
    assert isinstance(full, StoreFull)
    assert str(full) == "the database has no room (53100)"
