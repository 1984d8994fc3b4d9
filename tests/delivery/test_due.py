"""Deliveries brought forward: after a clock was set back, or by an operator."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.clock import SET_BACK_MS, ClockSetBack
from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, StoreUnavailable, Temporary
from relay.core.routing import Verdict
from relay.delivery.circuit_breaker import PROBE_MAX_S
from relay.delivery.dispatcher import POLL_INTERVAL_S
from relay.delivery.prefetch import LATE_COMMIT_S
from relay.delivery.settlement_writer import STORE_RETRY_S
from relay.store import LeasedBatch
from relay.store.ordering import HELD_MS
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS, ManualClock
from tests.delivery.dispatching import (
    DOWN,
    HOUR_S,
    SINK,
    Bench,
    ScriptedSink,
    lead,
    now_s,
    policy,
    taken,
    working,
)

DAY_MS = 86_400_000


def dues(bench: Bench) -> dict[str, int]:
    """Due time of each event, in milliseconds from now."""
    with closing(sqlite3.connect(bench.file)) as db, db:
        found = db.execute(
            "SELECT e.id, d.due_at FROM deliveries d JOIN events e ON e.seq = d.event"
        ).fetchall()
    db.close()
    return {name: due - bench.clock.now_ms() for name, due in found}


class TornClock(ManualClock):
    """A clock that is set while no time passes."""

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("back_ms", [0, 1, SET_BACK_MS])
def test_a_small_correction_is_not_a_clock_set_back(back_ms: int) -> None:
    clock = TornClock()
    watch = ClockSetBack(clock)
    clock.ms -= back_ms
    assert not watch.happened()


def test_a_clock_set_back_is_reported_once() -> None:
    clock = TornClock()
    watch = ClockSetBack(clock)
    clock.ms += DAY_MS
    assert not watch.happened()
    clock.ms -= SET_BACK_MS + 1
    assert (watch.happened(), watch.happened()) == (True, False)


async def test_a_clock_set_back_by_a_day_does_not_strand_retries(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="10s", max="1m")) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -DAY_MS
        await asyncio.sleep(60 * 1.1 + POLL_INTERVAL_S)
        assert [name for _, name in bench.sink.done] == ["a"]


async def test_a_clock_set_back_by_a_day_during_an_absence_does_not_strand_retries(
    tmp_path: Path,
) -> None:
    retry = policy(first="10s", max="1m", give_up_after="1h")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
    async with working(tmp_path, retry=retry, started=False) as bench:
        bench.clock.set_by_ms = -DAY_MS
        bench.sink.always = DOWN
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(60 * 1.1 + 1)
        assert bench.sink.ids == ["a"]
        # The time until it is given up has begun anew, rather than a day later.
        await asyncio.sleep(2 * HOUR_S)
        assert await bench.dead() == 1
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running


async def test_a_clock_set_back_during_the_first_fetch_does_not_strand_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = policy(first="10s", max="1m")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
    bring_forward = SqliteStore.bring_forward
    async with working(tmp_path, retry=retry, started=False) as bench:

        async def set_back_meanwhile(store: SqliteStore, sink: str, **times: int) -> int:
            monkeypatch.undo()
            count = await bring_forward(store, sink, **times)
            bench.clock.set_by_ms = -DAY_MS
            bench.dispatcher.wake()
            await asyncio.sleep(0.1)
            return count

        monkeypatch.setattr(SqliteStore, "bring_forward", set_back_meanwhile)
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(60 * 1.1 + POLL_INTERVAL_S)
        assert bench.sink.ids == ["a"]
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running


async def test_events_accepted_while_the_clock_was_ahead_are_sent_at_once(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        bench.clock.set_by_ms = DAY_MS
        await bench.accept("a", wake=False)
        bench.clock.set_by_ms = 0
        backlog = (await bench.store.backlogs())[SINK]
        assert backlog.oldest_ms == bench.clock.now_ms()
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(1)
        assert bench.sink.ids == ["a"]
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running


@pytest.mark.parametrize("started", [True, False])
async def test_an_event_stored_late_by_a_clock_that_was_ahead_is_sent_soon(
    tmp_path: Path, *, started: bool
) -> None:
    """Its commit was under way when the clock was set back, or when this dispatcher began."""
    async with working(tmp_path, started=started) as bench:
        running = None if started else asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(1)
        if started:
            bench.clock.set_by_ms = -DAY_MS
            bench.dispatcher.wake()
            await asyncio.sleep(1)
        bench.clock.set_by_ms += DAY_MS
        event = lead("a", received_ms=bench.clock.now_ms())
        bench.clock.set_by_ms -= DAY_MS
        await bench.store.accept(event, taken(), lambda _: bench.dispatcher.wake())
        await asyncio.sleep(LATE_COMMIT_S + POLL_INTERVAL_S)
        assert bench.sink.ids == ["a"]
        if running is not None:
            await bench.dispatcher.drain(Duration.parse("1s"))
            await running


async def test_a_dispatcher_sends_and_ends_while_late_deliveries_are_brought_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_ends(*_: object, **__: object) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(SqliteStore, "bring_forward", never_ends)
    async with working(tmp_path) as bench:
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.accept("b")
        await asyncio.sleep(1)
        assert bench.sink.ids == ["a", "b"]


async def test_a_dispatcher_that_ends_waits_for_no_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_ends(*_: object, **__: object) -> LeasedBatch:
        await asyncio.Event().wait()
        return LeasedBatch((), None)

    monkeypatch.setattr(SqliteStore, "lease", never_ends)
    async with working(tmp_path, started=False) as bench:
        running = asyncio.create_task(bench.dispatcher.run())
        await bench.accept("a")
        await asyncio.sleep(1)
        async with asyncio.timeout(1):
            await bench.dispatcher.drain(Duration.parse("1s"))
            await running


async def test_late_deliveries_are_brought_forward_once_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> int:
        monkeypatch.undo()
        raise StoreUnavailable("the database is away")

    async with working(tmp_path, started=False) as bench:
        bench.clock.set_by_ms = DAY_MS
        await bench.accept("a", wake=False)
        bench.clock.set_by_ms = 0
        monkeypatch.setattr(SqliteStore, "bring_forward", fail)
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(2 * STORE_RETRY_S)
        assert bench.sink.ids == ["a"]
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running


async def test_a_retry_after_survives_a_restart(tmp_path: Path) -> None:
    retry = policy(first="1s", max="10s")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.reply(Temporary("429", retry_after_ms=1_800_000))
        await bench.accept("a")
        await asyncio.sleep(1)
    async with working(tmp_path, retry=retry) as bench:
        await asyncio.sleep(1700)
        assert bench.sink.ids == []
        await asyncio.sleep(200)
        assert bench.sink.ids == ["a"]


async def test_a_retry_after_survives_a_clock_set_back(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, retry=policy(first="1s", max="10s")) as bench:
        bench.sink.reply(Temporary("429", retry_after_ms=1_800_000))
        await bench.accept("a")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -DAY_MS
        await asyncio.sleep(3600)
        assert 1800 <= bench.sink.times[1] <= 1800 + 11


async def test_a_delivery_that_waits_for_its_ordering_key_keeps_waiting(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="1h")) as bench:
        bench.sink.reply(DOWN)
        for name in ("first", "second"):
            event = lead(name, received_ms=bench.clock.now_ms())
            verdict = Verdict(SINK, "takes", "", "a key")
            await bench.store.accept(event, (verdict,), lambda _: bench.dispatcher.wake())
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -DAY_MS
        await asyncio.sleep(POLL_INTERVAL_S)
        assert bench.sink.ids == ["first"]
        assert dues(bench)["second"] <= HELD_MS
        assert await retry(bench) == 1
        await asyncio.sleep(1)
        assert bench.sink.ids == ["first", "first", "second"]


async def retry(bench: Bench, seq: int | None = None) -> int:
    """Do the same as `relay sinks retry`."""
    now_ms = bench.clock.now_ms()
    count = await bench.store.bring_forward(
        SINK, beyond_ms=now_ms, to_ms=now_ms, now_ms=now_ms, only=seq
    )
    bench.dispatcher.probe_now()
    return int(count)


async def test_an_operator_can_make_pending_deliveries_due_now(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="1h")) as bench:
        bench.sink.reply(DOWN, to="a")
        bench.sink.reply(DOWN, to="b")
        await bench.accept("a", "b", "c")
        await asyncio.sleep(1)
        assert await retry(bench, 2) == 1
        await asyncio.sleep(1)
        assert [name for _, name in bench.sink.done] == ["c", "b"]
        assert await retry(bench) == 1
        await asyncio.sleep(1)
        assert [name for _, name in bench.sink.done] == ["c", "b", "a"]
        assert await retry(bench) == 0


async def test_an_operator_can_probe_a_waiting_sink_now(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as bench:
        bench.sink.always = Misconfigured("the certificate has expired")
        await bench.accept(*(f"e{number}" for number in range(20)))
        await asyncio.sleep(HOUR_S)
        before = len(bench.sink.sent)
        # Away from the moment of a probe.
        await asyncio.sleep(PROBE_MAX_S / 2 - bench.sink.times[-1] % PROBE_MAX_S + PROBE_MAX_S)
        before = len(bench.sink.sent)
        bench.sink.always = SinkResponse(200, "ok")
        asked_s = now_s()
        await retry(bench)
        await asyncio.sleep(0.1)
        assert len(bench.sink.sent) > before
        assert max(bench.sink.times) - asked_s <= 0.1
        assert await bench.pending() == 0


async def test_thousands_are_brought_forward_in_several_transactions(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        bench.clock.set_by_ms = DAY_MS
        for part in range(5):
            await bench.accept(*(f"e{part}-{number}" for number in range(500)), wake=False)
        bench.clock.set_by_ms = 0
        assert min(dues(bench).values()) == DAY_MS
        assert await retry(bench) == 2500
        assert set(dues(bench).values()) == {0}


async def test_a_discarded_delivery_is_not_sent_from_the_buffer(tmp_path: Path) -> None:
    sink = ScriptedSink()
    sink.always = 1.0
    async with working(tmp_path, sink=sink) as bench:
        await bench.accept("a", "b", "c")
        await asyncio.sleep(0.5)
        given_up = [
            await bench.store.dead_letters.give_up(seq, SINK, now_ms=NOW_MS) for seq in (1, 2, 9)
        ]
        bench.dispatcher.refetch()
        assert given_up == [True, True, False]
        assert [bench.store.is_leased(SINK, seq) for seq in (1, 2)] == [True, False]
        await asyncio.sleep(10)
        assert sink.ids == ["a", "c"]
        assert await bench.pending() == 0


async def test_a_discarded_delivery_releases_the_next_of_its_ordering_key(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="1h")) as bench:
        bench.sink.reply(DOWN)
        for name in ("first", "second"):
            event = lead(name, received_ms=bench.clock.now_ms())
            verdict = Verdict(SINK, "takes", "", "a key")
            await bench.store.accept(event, (verdict,), lambda _: bench.dispatcher.wake())
        await asyncio.sleep(1)
        await bench.store.dead_letters.give_up(1, SINK, now_ms=NOW_MS)
        bench.dispatcher.refetch()
        await asyncio.sleep(1)
        assert bench.sink.ids == ["first", "second"]
        with closing(sqlite3.connect(bench.file)) as db, db:
            reason = db.execute("SELECT reason FROM deliveries WHERE event = 1").fetchone()
        db.close()
        assert reason == ("discarded by an operator after: connection refused",)
