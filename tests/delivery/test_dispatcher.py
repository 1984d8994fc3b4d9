"""The dispatcher on a real store, with a scripted sink and virtual time."""

import asyncio
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, StoreBroken, StoreFull, Temporary
from relay.core.retry import FAILURE_THRESHOLD
from relay.core.timeouts import TICK_S
from relay.delivery import circuit_breaker
from relay.delivery.circuit_breaker import PROBE_MAX_S, UNSETTLED_PER_SLOT
from relay.delivery.dispatcher import OWNER_POLL_S, POLL_INTERVAL_S
from relay.delivery.prefetch import FETCH_MIN, QUIET_S, REPLAY_GAP_S
from relay.delivery.settlement_writer import STORE_RETRY_S
from relay.store.replays import PlannedDelivery
from relay.store.selection import Selection
from tests.conftest import NOW_MS
from tests.delivery.dispatching import DOWN, HOUR_S, SINK, Bench, lead, now_s, policy, rate, working
from tests.store import erasing


def attempts(bench: Bench) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(bench.file)) as db, db:
        found = db.execute(
            "SELECT e.id, a.started_at, a.duration_ms, a.result, a.status, a.reason, a.answer "
            "FROM attempts a JOIN events e ON e.seq = a.event ORDER BY a.rowid"
        ).fetchall()
    db.close()
    return found


async def test_a_sink_that_another_relay_may_have_waits_and_goes_on_once_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(bench.dispatcher, "_may_send", lambda: False)
            await bench.accept("a")
            await asyncio.sleep(5)
            assert (bench.sink.ids, bench.dispatcher.waits_for()) == ([], "owner")
        await asyncio.sleep(OWNER_POLL_S)
        assert bench.sink.ids == ["a"]


async def test_new_work_is_sent_at_once(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(7.3)
        await bench.accept("a")
        await asyncio.sleep(0.1)
        assert bench.sink.sent == [(7.3, "a")]
        assert await bench.pending() == 0


async def test_an_idle_dispatcher_leaves_the_store_alone(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(HOUR_S)
        assert bench.store.leases <= HOUR_S / POLL_INTERVAL_S + 1


async def test_work_without_a_wakeup_is_found_by_the_next_poll(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        await bench.accept("a", wake=False)
        await asyncio.sleep(POLL_INTERVAL_S)
        assert bench.sink.sent == [(POLL_INTERVAL_S, "a")]


async def test_events_pending_at_the_start_are_sent_oldest_first(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        for event_id in ("a", "b", "c"):
            await bench.accept(event_id)
            await asyncio.sleep(1)
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(1)
        assert bench.sink.ids == ["a", "b", "c"]
        await bench.dispatcher.drain(Duration.parse("1s"))
        await running


async def test_a_wakeup_during_the_fetch_is_not_lost(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)

        async def arrive() -> None:
            await bench.accept("late")

        bench.store.meanwhile = arrive
        bench.dispatcher.wake()
        await asyncio.sleep(0.1)
        assert bench.sink.sent == [(1, "late")]


async def test_a_retry_runs_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    retry = policy(first="10s", factor=3.0, max="1m")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.reply(DOWN, DOWN, DOWN)
        await bench.accept("a")
        await asyncio.sleep(500)
        assert bench.sink.times == [0, 10, 40, 100]
        assert await bench.pending() == 0


async def test_a_new_arrival_does_not_cut_a_backoff_short(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="60s")) as bench:
        bench.sink.reply(DOWN, to="a")
        await bench.accept("a")
        for number in range(50):
            await asyncio.sleep(1)
            await bench.accept(f"n{number}")
        await asyncio.sleep(60)
        assert [at_s for at_s, event_id in bench.sink.sent if event_id == "a"] == [0, 60]


async def test_a_failing_event_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="1h")) as bench:
        bench.sink.reply(DOWN, to="a")
        await bench.accept("a", "b", "c")
        await asyncio.sleep(1)
        assert {event_id for _, event_id in bench.sink.done} == {"b", "c"}


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_no_more_are_sent_at_once_than_configured(tmp_path: Path, concurrency: int) -> None:
    async with working(tmp_path, concurrency=concurrency) as bench:
        bench.sink.always = 2.0
        await bench.accept(*(f"e{number}" for number in range(60)))
        await asyncio.sleep(200)
        assert len(bench.sink.done) == 60
        assert bench.sink.most_in_flight == concurrency


async def test_a_slow_send_holds_up_only_its_own_slot(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=2) as bench:
        bench.sink.always = 0.5
        bench.sink.reply(9.0, to="slow")
        await bench.accept("slow")
        await bench.accept(*(f"e{number}" for number in range(10)))
        await asyncio.sleep(5.5)
        assert len(bench.sink.done) == 10
        assert "slow" not in {event_id for _, event_id in bench.sink.done}


async def test_one_event_is_sent_at_a_time_while_requests_wait(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=5) as bench:
        bench.sink.always = 1.0
        with bench.busy():
            await bench.accept(*(f"e{number}" for number in range(20)))
            await asyncio.sleep(10.1)
        assert bench.sink.most_in_flight == 1
        assert len(bench.sink.done) == 10


async def test_a_hanging_send_does_not_block_slots_after_backpressure(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=5, timeout=Duration.parse("1h")) as bench:
        bench.sink.reply(600.0)
        with bench.busy():
            await bench.accept(*(f"e{number}" for number in range(20)))
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert len(bench.sink.done) == 19


async def test_the_rate_is_kept(tmp_path: Path) -> None:
    async with working(tmp_path, rate=rate("2/s"), concurrency=5) as bench:
        await bench.accept(*(f"e{number}" for number in range(40)))
        await asyncio.sleep(60)
        assert bench.sink.times == pytest.approx([number / 2 for number in range(40)], abs=0.002)


async def test_wakeups_do_not_override_the_rate(tmp_path: Path) -> None:
    async with working(tmp_path, rate=rate("1/m")) as bench:
        await bench.accept("a", "b")
        for _ in range(100):
            await asyncio.sleep(0.5)
            bench.dispatcher.wake()
        await asyncio.sleep(20)
        assert bench.sink.times == pytest.approx([0, 60], abs=0.002)


async def test_a_sink_that_keeps_failing_is_probed_and_the_others_keep_their_attempts(
    tmp_path: Path, lines: list[Any]
) -> None:
    async with working(tmp_path, retry=policy(first="1s", max="1h")) as bench:
        bench.sink.always = DOWN
        ids = [f"e{number}" for number in range(40)]
        await bench.accept(*ids)
        await asyncio.sleep(HOUR_S)
        probes = bench.sink.times[FAILURE_THRESHOLD:]
        assert bench.sample('relay_sink_state{sink="sales",state="throttled"}') == 1
        assert len(bench.sink.sent) < FAILURE_THRESHOLD + 8 + HOUR_S / PROBE_MAX_S
        assert max(b - a for a, b in pairwise(probes)) <= PROBE_MAX_S + 0.01
        assert bench.sink.most_in_flight == 1
        bench.sink.always = SinkResponse(200, "ok")
        await asyncio.sleep(2 * HOUR_S)
        assert await bench.pending() == 0
        assert bench.sample('relay_sink_state{sink="sales",state="active"}') == 1
    states = [line["event"] for line in lines if line["event"].startswith("sink.")]
    assert states == ["sink.throttled", "sink.active"]


async def test_a_sink_that_is_back_drains_its_backlog_at_once(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        bench.sink.always = DOWN
        await bench.accept(*(f"e{number}" for number in range(300)))
        await asyncio.sleep(600)
        bench.sink.always = SinkResponse(200, "ok")
        await asyncio.sleep(PROBE_MAX_S + 1)
        tried_once = FAILURE_THRESHOLD + 20
        assert await bench.pending() < tried_once


async def test_retry_after_pauses_the_whole_sink(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        bench.sink.reply(Temporary("429", status=429, retry_after_ms=90_000))
        await bench.accept("a", "b", "c")
        for _ in range(100):
            await asyncio.sleep(0.5)
            bench.dispatcher.wake()
        assert bench.sink.times == [0]
        await asyncio.sleep(100)
        assert bench.sink.times[1:] == pytest.approx([90, 90, 90], abs=0.2)
        assert sorted(event_id for _, event_id in bench.sink.done) == ["a", "b", "c"]


async def test_a_parked_sink_keeps_its_backlog_and_recovers_by_a_probe(
    tmp_path: Path, lines: list[Any]
) -> None:
    async with working(tmp_path, retry=policy(give_up_after="1m")) as bench:
        bench.sink.always = Misconfigured("401 Unauthorized", status=401)
        await bench.accept("a", "b", "c")
        await asyncio.sleep(HOUR_S)
        await bench.accept("d")
        await asyncio.sleep(HOUR_S)
        assert await bench.pending() == 4
        assert await bench.dead() == 0
        assert bench.sample('relay_sink_state{sink="sales",state="parked"}') == 1
        assert {row[3] for row in attempts(bench)} == {"parked"}
        bench.sink.always = SinkResponse(200, "ok")
        await asyncio.sleep(PROBE_MAX_S + 1)
        assert await bench.pending() == 0
    # One line when it is parked, none for every probe but its attempt.
    assert [x["event"] for x in lines if x["event"].startswith("sink.")] == [
        "sink.parked",
        "sink.active",
    ]


async def test_attempts_that_are_blamed_on_the_sink_do_not_count(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="10s", factor=10.0)) as bench:
        bench.sink.reply(DOWN, Misconfigured("404"), Misconfigured("404"), DOWN, to="a")
        await bench.accept("a")
        await asyncio.sleep(HOUR_S)
        results = [row[3] for row in attempts(bench)]
        assert results == ["retry", "parked", "parked", "retry", "delivered"]
        with closing(sqlite3.connect(bench.file)) as db, db:
            # The first one and the last: the other failures were a parked sink's.
            found = db.execute("SELECT attempts, tries, first_attempt_at FROM deliveries")
            assert found.fetchone() == (2, 5, NOW_MS)
        db.close()


async def test_a_delivery_of_a_parked_sink_waits_a_minute_at_most(
    tmp_path: Path,
) -> None:
    async with working(tmp_path) as bench:
        bench.sink.always = Misconfigured("401")
        await bench.accept("a", "b")
        await asyncio.sleep(HOUR_S)
        for event_id in ("a", "b"):
            times = [at_s for at_s, name in bench.sink.sent if name == event_id]
            waits = [after - before for before, after in pairwise(times)]
            assert min(waits) >= 1
            assert max(waits) <= 2 * PROBE_MAX_S + 0.1


async def test_a_bug_in_a_sink_is_temporary_and_logged_as_an_error(
    tmp_path: Path, lines: list[Any]
) -> None:
    async with working(tmp_path, retry=policy(first="5s")) as bench:
        bench.sink.reply(KeyError("token-and-body"))
        await bench.accept("a")
        await asyncio.sleep(20)
        assert bench.sink.times == [0, 5]
        assert [row[5] for row in attempts(bench)] == ["a bug in the sink: KeyError", ""]
    bug = next(line for line in lines if line["event"] == "sink.bug")
    assert bug["log_level"] == "error"
    assert bug["error"] == "KeyError"
    assert "token-and-body" not in str(lines)


async def test_a_sink_that_cancels_itself_does_not_keep_the_delivery(
    tmp_path: Path, lines: list[Any]
) -> None:
    async def cancel() -> SinkResponse:
        raise asyncio.CancelledError

    async with working(tmp_path, retry=policy(first="5s")) as bench:
        bench.sink.reply(cancel)
        await bench.accept("a")
        await asyncio.sleep(20)
        assert bench.sink.times == [0, 5]
    assert "sink.bug" in {line["event"] for line in lines}


async def test_a_send_is_cancelled_at_its_timeout_and_tried_again(tmp_path: Path) -> None:
    timeout = Duration.parse("10s")
    async with working(tmp_path, timeout=timeout, retry=policy(first="5s")) as bench:
        bench.sink.reply(600.0)
        await bench.accept("a")
        await asyncio.sleep(30)
        assert bench.sink.times == pytest.approx([0, 15], abs=2 * TICK_S)
        took_ms, *rest = attempts(bench)[0][2:6]
        assert took_ms == pytest.approx(10_000, abs=2_000 * TICK_S)
        assert rest == ["retry", None, "no answer within 10 s"]


async def test_a_refused_event_is_a_dead_letter_at_once(tmp_path: Path, lines: list[Any]) -> None:
    async with working(tmp_path) as bench:
        bench.sink.reply(Refused("422 Unprocessable", status=422, answer="no"), to="a")
        await bench.accept("a", "b")
        await asyncio.sleep(HOUR_S)
        assert bench.sink.ids.count("a") == 1
        assert (await bench.pending(), await bench.dead()) == (0, 1)
        with closing(sqlite3.connect(bench.file)) as db, db:
            row = db.execute("SELECT reason FROM deliveries WHERE status = 'dead'").fetchone()
        db.close()
        assert row == ("422 Unprocessable",)
        assert bench.sample('relay_deliveries_total{outcome="dead",sink="sales"}') == 1
    assert "sink.throttled" not in {line["event"] for line in lines}


async def test_an_event_is_given_up_after_its_time(tmp_path: Path) -> None:
    retry = policy(first="10m", max="10m", give_up_after="1h")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.always = DOWN
        await bench.accept("a")
        await asyncio.sleep(3 * HOUR_S)
        assert (await bench.pending(), await bench.dead()) == (0, 1)
        assert bench.sink.times[-1] == pytest.approx(HOUR_S, abs=PROBE_MAX_S)
        assert attempts(bench)[-1][3] == "dead"
        assert attempts(bench)[-1][5] == "gave up: connection refused"


async def test_waiting_in_the_backlog_does_not_age_an_event(tmp_path: Path) -> None:
    retry = policy(first="1m", max="1m", give_up_after="30m")
    async with working(tmp_path, retry=retry) as bench:
        bench.sink.always = Misconfigured("401")
        await bench.accept("a", "b")
        await asyncio.sleep(5 * HOUR_S)
        bench.sink.always = DOWN
        await asyncio.sleep(600)
        assert await bench.dead() == 0


async def test_every_attempt_is_recorded_with_the_destinations_answer(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="10s")) as bench:
        await asyncio.sleep(3)
        bench.sink.reply(Temporary("503", status=503, answer="busy"), 1.5)
        await bench.accept("a")
        await asyncio.sleep(60)
        assert attempts(bench) == [
            ("a", NOW_MS + 3000, 0, "retry", 503, "503", "busy"),
            ("a", NOW_MS + 13_000, 1500, "delivered", 200, "", "late"),
        ]


async def test_an_outcome_is_recorded_once_whatever_the_response(tmp_path: Path) -> None:
    odd: Any = "5O3"
    async with working(tmp_path, retry=policy(first="10s")) as bench:
        bench.sink.reply(
            Temporary("no", status=odd, answer="\ud800"), SinkResponse(odd, "\udfff \0")
        )
        await bench.accept("a")
        await asyncio.sleep(60)
        assert attempts(bench) == [
            ("a", NOW_MS, 0, "retry", None, "no", "\ufffd"),
            ("a", NOW_MS + 10_000, 0, "delivered", None, "", "\ufffd \0"),
        ]


async def test_a_delivery_makes_one_log_line_and_two_metrics(
    tmp_path: Path, lines: list[Any]
) -> None:
    async with working(tmp_path, retry=policy(first="10s")) as bench:
        bench.sink.reply(Temporary("503", status=503, answer="secret words"))
        await bench.accept("a")
        await asyncio.sleep(60)
        assert bench.sample('relay_attempts_total{result="retry",sink="sales"}') == 1
        assert bench.sample('relay_deliveries_total{outcome="delivered",sink="sales"}') == 1
    logged = [line for line in lines if line["event"].startswith("delivery.")]
    assert [line["event"] for line in logged] == ["delivery.retry", "delivery.delivered"]
    assert (logged[1]["sink"], logged[1]["id"], logged[1]["attempt"]) == (SINK, "a", 2)
    assert logged[1]["lag_ms"] == 10_000
    assert "secret words" not in str(lines)


async def test_drain_starts_nothing_new_and_lets_running_sends_end(tmp_path: Path) -> None:
    async with working(tmp_path, started=False, concurrency=2) as bench:
        running = asyncio.create_task(bench.dispatcher.run())
        bench.sink.always = 3.0
        await bench.accept("a", "b", "c", "d")
        await asyncio.sleep(1)
        await bench.dispatcher.drain(Duration.parse("10s"))
        await running
        assert now_s() == 3
        assert bench.sink.ids == ["a", "b"]
        assert await bench.pending() == 2
        assert (
            await bench.store.lease(SINK, now_ms=NOW_MS + 10_000, limits={"live": 9})
        ).deliveries


async def test_a_send_that_outlives_the_grace_is_left_pending(tmp_path: Path) -> None:
    timeout = Duration.parse("1h")
    async with working(tmp_path, started=False, timeout=timeout) as bench:
        running = asyncio.create_task(bench.dispatcher.run())
        bench.sink.always = 600.0
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.dispatcher.drain(Duration.parse("5s"))
        await running
        assert now_s() == pytest.approx(6)
        assert (await bench.pending(), attempts(bench)) == (1, [])


async def test_draining_an_idle_dispatcher_ends_it_at_once(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:
        running = asyncio.create_task(bench.dispatcher.run())
        await asyncio.sleep(5)
        await bench.dispatcher.drain(Duration.parse("10s"))
        await running
        assert now_s() == 5


async def test_a_drain_during_the_fetch_starts_nothing(tmp_path: Path) -> None:
    async with working(tmp_path, started=False) as bench:

        async def drain() -> None:
            await bench.dispatcher.drain(Duration.parse("10s"))

        await bench.accept("a")
        bench.store.meanwhile = drain
        await bench.dispatcher.run()
        assert bench.sink.sent == []


async def test_an_outcome_waits_for_a_full_store_and_is_not_sent_again(
    tmp_path: Path, lines: list[Any]
) -> None:
    async with working(tmp_path) as bench:
        bench.store.settle_errors.extend([StoreFull("no room")] * 120)
        await bench.accept("a")
        await asyncio.sleep(60)
        assert await bench.pending() == 1
        await asyncio.sleep(61 * STORE_RETRY_S)
        assert await bench.pending() == 0
        assert bench.sink.ids == ["a"]
    # Two minutes of it are not a hundred and twenty lines.
    assert len([line for line in lines if line["event"] == "store.unavailable"]) <= 25


async def test_a_fetch_that_fails_is_repeated(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        bench.store.lease_errors.extend([StoreFull("no room")] * 3)
        await bench.accept("a")
        await asyncio.sleep(10)
        assert bench.sink.times == pytest.approx([1 + 3 * STORE_RETRY_S], abs=0.01)


@pytest.mark.parametrize("errors", ["lease_errors", "settle_errors"])
async def test_a_broken_store_ends_the_dispatcher(tmp_path: Path, errors: str) -> None:
    async with working(tmp_path, started=False) as bench:
        getattr(bench.store, errors).append(StoreBroken("the disk failed"))
        await bench.accept("a")
        with pytest.raises(BaseException) as failed:  # noqa: PT011  a group or the error itself
            await bench.dispatcher.run()
        assert "the disk failed" in repr(failed.value)


async def test_new_events_are_sent_after_the_clock_was_set_back_by_an_hour(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await bench.accept("before")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -3_600_000
        await bench.accept("after")
        await asyncio.sleep(1)
        assert bench.sink.sent == [(0, "before"), (1, "after")]


async def test_a_retry_survives_a_clock_that_was_set_back_and_corrected(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="10s")) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -3_600_000
        await asyncio.sleep(60)
        assert bench.sink.times == [0]
        bench.clock.set_by_ms = 0
        await asyncio.sleep(POLL_INTERVAL_S)
        assert len(bench.sink.sent) == 2


async def test_a_retry_runs_in_the_end_if_the_clock_stays_set_back(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="10s")) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = -3_600_000
        await asyncio.sleep(HOUR_S + 11)
        assert bench.sink.times == pytest.approx([0, HOUR_S + 10], abs=0.01)


async def test_a_clock_set_ahead_sends_waiting_retries_within_one_poll(tmp_path: Path) -> None:
    async with working(tmp_path, retry=policy(first="30m")) as bench:
        bench.sink.reply(DOWN)
        await bench.accept("a")
        await asyncio.sleep(1)
        bench.clock.set_by_ms = 3_600_000
        await asyncio.sleep(POLL_INTERVAL_S)
        assert len(bench.sink.sent) == 2


@pytest.mark.servers
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_only_a_small_part_of_a_large_backlog_is_leased(
    tmp_path: Path, concurrency: int
) -> None:
    async with working(tmp_path, concurrency=concurrency) as bench:
        bench.sink.always = 0.01
        await bench.accept(*(f"e{number:04}" for number in range(2000)))
        await asyncio.sleep(60)
        assert len(bench.sink.done) == 2000
        assert bench.store.most_held <= FETCH_MIN + (3 + UNSETTLED_PER_SLOT) * concurrency
        assert bench.store.leases <= 2000


async def test_nothing_is_sent_twice_while_arrivals_failures_and_fetches_cross(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, concurrency=7, retry=policy(first="2s", max="5s")) as bench:
        bench.sink.always = 0.3
        failing = [f"e{number}" for number in range(0, 200, 10)]
        for event_id in failing:
            bench.sink.reply(DOWN, to=event_id)
        for number in range(200):
            await bench.accept(f"e{number}")
            await asyncio.sleep(0.037)
        await asyncio.sleep(120)
        assert await bench.pending() == 0
        delivered = [event_id for _, event_id in bench.sink.done]
        assert sorted(delivered) == sorted({f"e{number}" for number in range(200)})


async def test_the_breaker_uses_the_states_of_the_metrics(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(1)
        for state in circuit_breaker.State.__args__:  # type: ignore[attr-defined]
            assert bench.sample(f'relay_sink_state{{sink="sales",state="{state}"}}') >= 0


async def replayed(bench: Bench, count: int) -> None:
    """Deliver this many events, and have a replay open them again."""
    names = [f"old{number:03}" for number in range(count)]
    await bench.accept(*names)
    await bench.settled()
    await asyncio.sleep(QUIET_S)
    bench.sink.sent.clear()
    until = await bench.store.events.newest()
    begun = await bench.store.replays.begin(Selection(), total=count, until=until, now_ms=NOW_MS)
    wanted = [PlannedDelivery(seq, SINK) for seq in range(1, count + 1)]
    await bench.store.replays.open(begun, wanted, cursor=count, now_ms=bench.clock.now_ms())


async def test_a_replay_alone_is_sent_as_fast_as_the_sink_takes_it(tmp_path: Path) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        await replayed(bench, 60)
        bench.sink.always = 0.01
        began_s = now_s()
        bench.dispatcher.wake()
        await bench.settled()
        assert len(bench.sink.sent) == 60
        assert max(bench.sink.times) - began_s < 60 / 4 * 0.01 + 0.01


async def test_a_replay_keeps_its_gap_and_does_not_delay_live_events(
    tmp_path: Path,
) -> None:
    async with working(tmp_path, concurrency=4) as bench:
        await replayed(bench, 60)
        await bench.accept("live0")
        leases, accepted_s = bench.store.leases, [now_s()]
        for number in range(1, 4):
            await asyncio.sleep(0.05)
            accepted_s.append(now_s())
            await bench.accept(f"live{number}")
        await bench.settled()
        lived = [at_s for at_s, name in bench.sink.sent if name.startswith("live")]
        old = [at_s for at_s, name in bench.sink.sent if name.startswith("old")]
        assert lived == accepted_s
        assert len(old) == 60
        assert min(after - before for before, after in pairwise(old)) >= REPLAY_GAP_S - 1e-6
        assert bench.store.leases - leases < 20


async def test_an_erased_event_is_not_sent_from_the_buffer(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        erased = asyncio.Event()

        async def late() -> SinkResponse:
            await erased.wait()
            return SinkResponse(200)

        bench.sink.reply(late, to="a")
        await bench.accept("a", "b", "c")
        await asyncio.sleep(0.1)
        await erase(bench)
        bench.dispatcher.refetch()
        erased.set()
        await asyncio.sleep(POLL_INTERVAL_S)
        assert bench.sink.ids == ["a"]
        assert bench.store.held == set()


async def test_an_event_erased_during_a_fetch_is_not_sent(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:

        async def meanwhile() -> None:
            await erase(bench)
            bench.dispatcher.refetch()

        bench.store.meanwhile = meanwhile
        await bench.accept("a", "b")
        await asyncio.sleep(POLL_INTERVAL_S)
        assert bench.sink.ids == []


async def test_a_state_began_now_at_the_latest_once_the_clock_was_set_back(tmp_path: Path) -> None:
    async with working(tmp_path) as bench:
        await asyncio.sleep(60)
        bench.clock.set_by_ms = -1_800_000
        since_ms = bench.dispatcher.status().since_ms
        assert since_ms == bench.clock.now_ms()
        assert round(bench.sample("relay_sink_state_timestamp_seconds{") * 1000) == since_ms
        await asyncio.sleep(60)
        assert bench.dispatcher.status().since_ms == since_ms


async def erase(bench: Bench) -> None:
    """Erase the person of all events in these tests."""
    email = lead("any", received_ms=0).person()
    assert email is not None
    await erasing.erase(bench.store, email, now_ms=bench.clock.now_ms())
