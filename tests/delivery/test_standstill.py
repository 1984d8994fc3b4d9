"""Sinks that stand still are seen from outside their dispatchers, which are built anew once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from relay.core.acceptance import Backpressure
from relay.core.config_values import Duration
from relay.core.delivery import Settlement, SinkResponse
from relay.core.errors import Misconfigured, StoreFull, StoreUnavailable, Temporary
from relay.core.routing import Verdict
from relay.core.sink import Sink, SinkSettings
from relay.core.sink_status import SinkStatus
from relay.delivery.dispatcher import Dispatcher
from relay.delivery.standstill import LOOK_EVERY_S, StandstillMonitor
from relay.delivery.supervisor import BUILD_LIMIT_S, DispatcherSupervisor
from relay.store import FirstDue, LeasedBatch
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.activity_stream import ActivityStream
from relay.telemetry.metrics import Metrics
from tests.delivery.dispatching import SINK, ScriptedSink, lead, now_s, policy, rate
from tests.store.places import opened
from tests.virtual_time import LoopClock

MINUTE_S = 60.0


class Closing(ScriptedSink):
    """A scripted sink that notes when it is closed."""

    closed_s: float | None = None

    async def close(self) -> None:
        self.closed_s = now_s()


class Supervised:
    """A supervised sink on a real store, watched by a monitor."""

    def __init__(
        self, supervisor: DispatcherSupervisor, store: SqliteStore, metrics: Metrics
    ) -> None:
        self.supervisor = supervisor
        self.store = store
        self._metrics = metrics
        self.built: list[Closing] = []

    @property
    def sink(self) -> Closing:
        return self.built[0]

    @property
    def status(self) -> SinkStatus:
        return self.supervisor.statuses()[SINK]

    async def accept(self, *ids: str, key: str | None = None) -> None:
        verdict = Verdict(SINK, "takes", "events and sources match", key)
        for name in ids:
            event = lead(name, received_ms=LoopClock().now_ms())
            await self.store.accept(event, [verdict], lambda _: self.supervisor.wake(SINK))

    def sample(self, name: str) -> float:
        text = self._metrics.exposition("")[0].decode()
        return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])

    @property
    def standstill_s(self) -> float:
        return self.sample("relay_sink_standstill_seconds{")

    async def looks(self, seconds: float) -> list[float]:
        """Return the standstill right after each look of a time."""
        seen = []
        await asyncio.sleep(0.5)
        for _ in range(round(seconds / LOOK_EVERY_S)):
            await asyncio.sleep(LOOK_EVERY_S)
            seen.append(self.standstill_s)
        return seen


@asynccontextmanager
async def supervised(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Supervised]:
    clock, metrics = LoopClock(), Metrics(["main"], [SINK])
    built: list[Closing] = []

    def build(_: object, tables: Iterable[SinkSettings]) -> Mapping[str, Sink]:
        built.append(Closing())
        return {each.name: built[-1] for each in tables}

    monkeypatch.setattr(DispatcherSupervisor, "build", build)
    async with opened(folder / "relay.db", clock) as store:
        supervisor = DispatcherSupervisor(
            [SinkSettings(name=SINK, type="http", **settings)],
            store=store,
            metrics=metrics,
            clock=clock,
            random=Random(1),
            backpressure=Backpressure(),
            activity=ActivityStream(clock),
        )
        monitor = StandstillMonitor(
            supervisor=supervisor, store=store, metrics=metrics, clock=clock
        )
        async with asyncio.TaskGroup() as parts:
            await supervisor.start(parts)
            watching = parts.create_task(monitor.run())
            bench = Supervised(supervisor, store, metrics)
            bench.built = built
            yield bench
            watching.cancel()
            await supervisor.drain(Duration.parse("1s"))
        await supervisor.close()


def hanging_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    """Let one call of an async method hang, until it is cancelled."""
    works: Callable[..., Any] = getattr(owner, method)
    hung = False

    async def hangs(*args: Any, **kwargs: Any) -> Any:
        nonlocal hung
        if not hung:
            hung = True
            await asyncio.Event().wait()
        return await works(*args, **kwargs)

    monkeypatch.setattr(owner, method, hangs)


@pytest.mark.parametrize(
    ("owner", "method"), [(SqliteStore, "lease"), (Dispatcher, "_wait")], ids=["fetch", "wakeup"]
)
async def test_a_dispatcher_that_is_stuck_is_seen_and_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    hanging_once(monkeypatch, owner, method)
    with capture_logs() as log:
        async with supervised(tmp_path, monkeypatch) as bench:
            await bench.accept("a")
            seen = await bench.looks(MINUTE_S - LOOK_EVERY_S)
            assert seen == sorted(seen)
            assert (seen[0] < LOOK_EVERY_S + 1, seen[-1] > 40, bench.sink.ids) == (True, True, [])
            assert bench.status.state == "active"
            assert bench.status.stands_still_since_ms is not None
            await bench.looks(0.5 * MINUTE_S)
            assert bench.sink.ids == ["a"]
            assert bench.standstill_s == 0
        assert bench.status.stands_still_since_ms is None
    lines = [line for line in log if line["event"] in ("sink.stands_still", "sink.rebuilt")]
    assert [line["event"] for line in lines] == ["sink.stands_still", "sink.rebuilt"]
    waited_for = "fetch" if method == "lease" else "nothing that it knows of"
    assert lines[0]["reason"].endswith(waited_for)


async def test_a_sink_that_stays_stuck_is_rebuilt_once_and_stays_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object, **__: object) -> LeasedBatch:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(SqliteStore, "lease", hangs)
    with capture_logs() as log:
        async with supervised(tmp_path, monkeypatch) as bench:
            await bench.accept("a")
            seen = await bench.looks(10 * MINUTE_S)
            assert seen == sorted(seen)
            assert seen[-1] > 9.5 * MINUTE_S
    assert [line["event"] for line in log].count("sink.rebuilt") == 1


async def test_no_second_send_starts_while_one_ignores_its_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_on = asyncio.Event()

    async def stubborn() -> SinkResponse:
        while not gone_on.is_set():
            try:
                await gone_on.wait()
            except asyncio.CancelledError:
                continue
        return SinkResponse(200, "ok")

    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.reply(stubborn)
        await bench.accept("a", "b")
        await bench.looks(5 * MINUTE_S)
        assert bench.sink.ids == ["a"]
        assert bench.standstill_s > 4 * MINUTE_S
        gone_on.set()
        await asyncio.sleep(LOOK_EVERY_S)
        assert bench.sink.ids[-1] == "b"
        assert bench.sink.most_in_flight == 1


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rate": rate("6/h")}, "rate"),
        ({"timeout": Duration.parse("10m")}, "sends"),
    ],
)
async def test_a_reason_that_lasts_explains_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], reason: str
) -> None:
    async with supervised(tmp_path, monkeypatch, **settings) as bench:
        bench.sink.always = 500.0 if reason == "sends" else SinkResponse(200, "ok")
        await bench.accept("a", "b")
        assert set(await bench.looks(8 * MINUTE_S)) == {0}
        assert (bench.sink.ids, bench.status.waits_for) == (["a"], reason)
        assert bench.sample(f'relay_sink_waits_for{{reason="{reason}"') == 1


async def test_a_long_send_beside_free_slots_is_no_standstill_but_a_second_delivery_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten = Duration.parse("10m")
    async with supervised(tmp_path, monkeypatch, timeout=ten, concurrency=4) as bench:
        bench.sink.always = 500.0
        await bench.accept("a")
        assert set(await bench.looks(5 * MINUTE_S)) == {0}
        hanging_once(monkeypatch, SqliteStore, "lease")
        await bench.accept("b")
        assert (await bench.looks(MINUTE_S / 2))[-1] > 10
        assert bench.sink.ids == ["a"]


async def test_a_store_that_refuses_outcomes_explains_a_wait_in_which_nothing_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        works, is_full = bench.store.settle, True

        async def settle(*settlements: Settlement) -> None:
            if is_full:
                raise StoreFull("the disk is full")
            await works(*settlements)

        monkeypatch.setattr(bench.store, "settle", settle)
        ids = [f"evt_{number}" for number in range(10)]
        await bench.accept(*ids)
        assert set(await bench.looks(5 * MINUTE_S)) == {0}
        assert bench.status.waits_for == "settlement"
        is_full = False
        await asyncio.sleep(5)
        assert sorted(bench.sink.ids) == ids


async def test_a_write_of_outcomes_that_never_ends_is_seen_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging_once(monkeypatch, SqliteStore, "settle")
    async with supervised(tmp_path, monkeypatch) as bench:
        ids = [f"evt_{number}" for number in range(10)]
        await bench.accept(*ids)
        assert max(await bench.looks(3 * MINUTE_S)) >= MINUTE_S
        assert (set(bench.sink.ids), bench.standstill_s) == (set(ids), 0)


async def test_a_sink_begins_again_once_the_store_can_be_read_after_its_rebuild_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging_once(monkeypatch, SqliteStore, "lease")
    async with supervised(tmp_path, monkeypatch) as bench:
        await bench.accept("a")
        works, failures = bench.store.paused_sinks.all, iter(range(3))

        async def fails() -> Mapping[str, int]:
            if next(failures, None) is not None:
                raise StoreUnavailable("the database is away")
            return await works()

        monkeypatch.setattr(bench.store.paused_sinks, "all", fails)
        await bench.looks(1.5 * MINUTE_S)
        assert (bench.sink.ids, bench.standstill_s, next(failures, None)) == (["a"], 0, None)


async def test_a_sink_that_leaves_during_a_look_has_no_standstill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging_once(monkeypatch, SqliteStore, "lease")
    async with supervised(tmp_path, monkeypatch) as bench:
        await bench.accept("a")
        assert (await bench.looks(MINUTE_S / 2))[-1] > 10
        first_due = bench.store.first_due

        async def leaves(*args: Any, **kwargs: Any) -> Mapping[str, FirstDue]:
            await bench.supervisor.end(SINK, grace=Duration.parse("1s"))
            return await first_due(*args, **kwargs)

        monkeypatch.setattr(bench.store, "first_due", leaves)
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert bench.standstill_s == 0


async def test_a_paused_sink_and_a_failing_one_do_not_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        await bench.supervisor.pause(SINK)
        await bench.accept("a", "b")
        assert set(await bench.looks(3 * MINUTE_S)) == {0}
        assert bench.status.waits_for == "pause"
        await bench.supervisor.resume(SINK)
        await asyncio.sleep(LOOK_EVERY_S)
    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.always = Misconfigured("no such channel", status=404)
        await bench.accept("c")
        assert set(await bench.looks(3 * MINUTE_S)) == {0}
        assert (bench.status.state, bench.status.waits_for) == ("parked", "breaker")


async def test_deliveries_that_wait_for_their_key_are_explained_by_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = policy(first="1h", max="1h")
    async with supervised(tmp_path, monkeypatch, ordered="video", retry=hour) as bench:

        async def fail_first() -> SinkResponse:
            raise ConnectionError

        bench.sink.reply(fail_first, to="a")
        await bench.accept("a", "b", key="video 1")
        assert set(await bench.looks(5 * MINUTE_S)) == {0}
        assert (bench.sink.ids, bench.status.waits_for) == (["a"], "order")


async def test_a_quiet_sink_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        await bench.accept("a")
        assert set(await bench.looks(3 * MINUTE_S)) == {0}
        assert bench.status.waits_for is None


async def test_a_retry_of_a_failing_sink_begins_with_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.always = Misconfigured("read only", status=None)
        await bench.accept("a")
        await asyncio.sleep(1)
        assert bench.status.state == "parked"
        await bench.supervisor.retry(SINK, None)
        await asyncio.sleep(1)
        first, second = bench.built
        assert first.closed_s is not None
        assert (second.ids, bench.status.state) == (["a"], "active")


async def test_sends_under_way_end_on_the_old_connections_before_the_new_ones_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch, concurrency=2) as bench:
        bench.sink.reply(5.0, to="a")
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.supervisor.pause(SINK)
        await bench.accept("b")
        await bench.supervisor.resume(SINK)
        await asyncio.sleep(1)
        assert (bench.built[-1].ids, bench.sink.closed_s) == ([], None)
        await asyncio.sleep(5)
        assert [each.ids for each in bench.built] == [["a"], ["b"]]
        assert bench.sink.done[0][0] == pytest.approx(5.0)
        assert bench.sink.closed_s == pytest.approx(5.0)


async def test_a_retry_of_an_active_sink_keeps_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.supervisor.retry(SINK, None)
        await asyncio.sleep(1)
        assert len(bench.built) == 1


async def test_a_sink_that_cannot_be_built_any_longer_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as log:
        async with supervised(tmp_path, monkeypatch) as bench:
            bench.sink.reply(Misconfigured("read only", status=None))
            await bench.accept("a")
            await asyncio.sleep(0.5)

            def gone(*_: object) -> Mapping[str, Sink]:
                raise ValueError("ca_file: no such file")

            monkeypatch.setattr(DispatcherSupervisor, "build", gone)
            await bench.supervisor.retry(SINK, None)
            await asyncio.sleep(1)
            assert bench.sink.ids == ["a", "a"]
    assert "sink.not_replaced" in [line["event"] for line in log]


async def being_rebuilt(bench: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until a rebuild waits for a send of the old dispatcher, which takes 500 s."""
    bench.sink.reply(500.0, to="a")
    await bench.accept("a")
    await asyncio.sleep(1)
    hanging_once(monkeypatch, SqliteStore, "lease")
    await bench.accept("b")
    await bench.looks(1.5 * MINUTE_S)
    assert (bench.sink.in_flight, bench.sink.ids) == (1, ["a"])


LONG: dict[str, Any] = {"timeout": Duration.parse("10m"), "concurrency": 4}


async def test_a_stop_during_a_rebuild_ends_the_old_dispatcher_within_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch, **LONG) as bench:
        await being_rebuilt(bench, monkeypatch)
        begun_s = now_s()
        await bench.supervisor.drain(Duration.parse("2s"))
        assert bench.sink.in_flight == 0
    assert now_s() - begun_s < 10
    assert (bench.sink.ids, bench.sink.done) == (["a"], [])


async def test_a_second_signal_cuts_off_the_sends_of_a_dispatcher_that_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as log:
        async with supervised(tmp_path, monkeypatch, **LONG) as bench:
            await being_rebuilt(bench, monkeypatch)
            begun_s = now_s()
            bench.supervisor.cut_off()
            await bench.supervisor.drain(Duration.parse("5m"))
            assert now_s() - begun_s < 10
    (line,) = [line for line in log if line["event"] == "sends.cut_off"]
    assert (line["count"], line["counts"]) == (1, [f"{SINK} 1"])


async def test_a_sink_that_goes_to_another_relay_during_a_rebuild_ends_within_the_handover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch, **LONG) as bench:
        await being_rebuilt(bench, monkeypatch)
        begun_s = now_s()
        await bench.supervisor.end(SINK, grace=Duration.parse("2s"))
        assert now_s() - begun_s < 10
        assert bench.sink.in_flight == 0


async def test_a_sink_that_is_removed_during_its_rebuild_leaves_within_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch, **LONG) as bench:
        await being_rebuilt(bench, monkeypatch)
        begun_s = now_s()
        bench.supervisor.adopt([], {}, paused={}, grace=Duration.parse("2s"))
        await asyncio.sleep(10)
        assert bench.sink.in_flight == 0
        assert bench.sink.closed_s is not None
        assert bench.sink.closed_s - begun_s < 10


async def test_nothing_begins_after_a_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        hanging_once(monkeypatch, SqliteStore, "lease")
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.supervisor.drain(Duration.parse("1s"))
        await bench.supervisor.rebuild(SINK)
        await asyncio.sleep(MINUTE_S)
        assert bench.sink.ids == []


async def test_a_dispatcher_that_ends_keeps_its_connections_until_its_sends_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch, concurrency=2) as bench:
        bench.sink.reply(5.0, to="a")
        await bench.accept("a")
        await asyncio.sleep(1)
        await bench.supervisor.pause(SINK)
        await bench.supervisor.resume(SINK)
        await bench.supervisor.rebuild(SINK)
        await asyncio.sleep(1)
        assert [name for _, name in bench.sink.done] == ["a"]
        assert bench.sink.closed_s == pytest.approx(5.0)
        await bench.accept("b")
        await asyncio.sleep(1)
        assert [each.ids for each in bench.built] == [["a"], ["b"]]


async def test_a_retry_probes_by_the_new_connections_also_where_they_take_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.always = Misconfigured("read only", status=None)
        await bench.accept("a")
        await asyncio.sleep(0.5)

        async def slowly(work: Callable[..., Any], *arguments: Any) -> Any:
            await asyncio.sleep(5)
            return work(*arguments)

        monkeypatch.setattr(asyncio, "to_thread", slowly)
        await bench.supervisor.retry(SINK, None)
        await asyncio.sleep(6)
        assert [each.ids for each in bench.built] == [["a"], ["a"]]
        assert bench.status.state == "active"


async def test_new_connections_that_are_never_built_hold_a_sink_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.reply(Misconfigured("read only", status=None))
        await bench.accept("a")
        await asyncio.sleep(0.5)

        works = asyncio.to_thread

        async def hangs(work: Callable[..., Any], *arguments: Any) -> Any:
            if work == bench.supervisor.build:
                await asyncio.Event().wait()
            return await works(work, *arguments)

        monkeypatch.setattr(asyncio, "to_thread", hangs)
        await bench.supervisor.retry(SINK, None)
        await asyncio.sleep(BUILD_LIMIT_S - 1)
        assert bench.sink.ids == ["a"]
        await asyncio.sleep(2)
        assert (bench.sink.ids, bench.status.state) == (["a", "a"], "active")


async def test_a_slow_close_of_the_old_connections_ends_no_pause_of_the_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(tmp_path, monkeypatch) as bench:
        bench.sink.always = Misconfigured("read only", status=None)
        await bench.accept("a", "b")
        await asyncio.sleep(0.5)
        busy = Closing()
        busy.always = Temporary("busy", status=429, retry_after_ms=60_000)

        async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
            return work(*arguments)

        async def slowly(_: Closing) -> None:
            await asyncio.sleep(3)

        monkeypatch.setattr(asyncio, "to_thread", at_once)
        monkeypatch.setattr(Closing, "close", slowly)
        monkeypatch.setattr(DispatcherSupervisor, "build", lambda *_: {SINK: busy})
        await bench.supervisor.retry(SINK, None)
        await asyncio.sleep(10)
        assert (len(busy.sent), bench.status.state) == (1, "throttled")
