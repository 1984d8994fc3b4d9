"""The recorded states of sinks, in virtual time."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from relay.app.sink_history import COMPARE_EVERY_S, WRITES_MAX, SinkHistory
from relay.core.config_values import Size
from relay.core.delivery_rules import Downtime
from relay.core.errors import StoreBroken, StoreUnavailable
from relay.core.sink_status import SinkStatus, State
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from relay.telemetry.activity_stream import ActivityStream
from tests import service
from tests.conftest import NOW_MS
from tests.virtual_time import LoopClock, VirtualLoop, still_while_the_store_works

ROUND_MS = round(COMPARE_EVERY_S * 1000)
HOUR_MS = 3_600_000
Spans = list[tuple[State | None, int, int | None]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(autouse=True)
def _still() -> Iterator[None]:
    with still_while_the_store_works():
        yield


@dataclass
class Bench:
    """A recorder, its store, and the states that it is shown."""

    store: SqliteStore
    clock: LoopClock
    states: dict[str, State] = field(default_factory=lambda: dict[str, State](crm="active"))
    since_ms: int | None = None
    """Of all states; None if they do not say."""
    commits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.activity = ActivityStream(self.clock)

    def change(self, state: State, sink: str = "crm") -> None:
        """Change a state as a dispatcher does."""
        self.states[sink] = state
        self.activity.publish("state", sink=sink, state=state)

    def history(self, downtime: Downtime | None = None) -> SinkHistory:
        return SinkHistory(
            self.store,
            statuses=self.statuses,
            downtime=lambda: downtime,
            activity=self.activity,
            clock=self.clock,
        )

    def statuses(self) -> Mapping[str, SinkStatus]:
        return {
            name: SinkStatus(name=name, type="http", state=state, since_ms=self.since_ms)
            for name, state in self.states.items()
        }

    @contextlib.asynccontextmanager
    async def recording(self, downtime: Downtime | None = None) -> AsyncIterator[None]:
        """Record until the block ends; raises what ends it earlier."""
        task = asyncio.create_task(self.history(downtime).run())
        try:
            await rounds(0)
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def spans(self, sink: str = "crm") -> Spans:
        """Return a sink's spans, with times since `NOW_MS`."""
        found = (await self.store.sink_states.since(0)).get(sink, ())
        return [
            (span.state, span.from_ms - NOW_MS, None if span.to_ms is None else span.to_ms - NOW_MS)
            for span in found
        ]


async def rounds(count: float) -> None:
    """Let virtual time pass until so many rounds are done, and one second more."""
    await asyncio.sleep(count * COMPARE_EVERY_S + 1)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"), min_free=Size.parse("1B"))
    clock, commits = LoopClock(), list[float]()
    # A module has one loop, whose time goes on from test to test.
    clock.set_by_ms = -round(clock.monotonic() * 1000)
    store = await open_store(settings, clock=clock, committed=commits.append)
    yield Bench(store, clock, commits=commits)
    await store.close()


async def test_a_change_is_recorded_within_a_round(bench: Bench) -> None:
    async with bench.recording():
        bench.states["crm"] = "parked"
        await rounds(1)
        bench.states |= {"crm": "active", "slack": "throttled"}
        await rounds(1)
    assert await bench.spans() == [
        ("active", 0, ROUND_MS),
        ("parked", ROUND_MS, 2 * ROUND_MS),
        ("active", 2 * ROUND_MS, None),
    ]
    assert await bench.spans("slack") == [("throttled", 2 * ROUND_MS, None)]


async def test_that_a_sink_is_parked_is_recorded_at_once(bench: Bench) -> None:
    async with bench.recording():
        bench.change("parked")
        await asyncio.sleep(0.001)
        assert [state for state, *_ in await bench.spans()] == ["active", "parked"]


async def test_a_sink_that_is_parked_many_times_is_recorded_five_times_a_round(
    bench: Bench,
) -> None:
    async with bench.recording():
        await rounds(1)
        commits = len(bench.commits)
        for _ in range(round(2 * COMPARE_EVERY_S / 0.1)):
            bench.change("active" if bench.states["crm"] == "parked" else "parked")
            await asyncio.sleep(0.1)
        assert len(bench.commits) - commits <= 2 * WRITES_MAX + 1


async def test_a_change_is_recorded_with_the_time_at_which_it_began(bench: Bench) -> None:
    async with bench.recording():
        bench.states["crm"], bench.since_ms = "parked", bench.clock.now_ms() + 17
        await rounds(1)
    assert await bench.spans() == [("active", 0, 1017), ("parked", 1017, None)]


async def test_a_stop_records_what_has_changed_since_the_last_look(bench: Bench) -> None:
    async with bench.recording():
        bench.states["crm"] = "parked"
        history = bench.history()
        await history.record_at_stop()
        assert [state for state, *_ in await bench.spans()] == ["active", "parked"]
    with service.logging_to_memory():
        bench.store._writer.mark_broken(StoreBroken("the store is damaged"))
        await history.record_at_stop()


async def test_an_idle_relay_writes_nothing(bench: Bench) -> None:
    async with bench.recording():
        commits = len(bench.commits)
        await rounds(24 * 720)
        assert len(bench.commits) == commits
    assert await bench.spans() == [("active", 0, None)]


async def test_a_removed_sink_is_gone(bench: Bench) -> None:
    bench.states["slack"] = "active"
    async with bench.recording():
        del bench.states["slack"]
        await rounds(1)
        commits = len(bench.commits)
        await rounds(5)
        assert len(bench.commits) == commits
    assert await bench.spans("slack") == [("active", 0, ROUND_MS), (None, ROUND_MS, None)]


async def test_a_downtime_has_no_known_state(bench: Bench) -> None:
    bench.states["removed meanwhile"] = "parked"
    async with bench.recording():
        pass
    alive_ms = bench.clock.now_ms()
    bench.clock.set_by_ms += HOUR_MS
    bench.states = {"crm": "active"}
    start_ms = bench.clock.now_ms()
    downtime = Downtime(from_ms=alive_ms, to_ms=start_ms, lacks=None)
    async with bench.recording(downtime):
        pass
    gone_ms, back_ms = alive_ms - NOW_MS + 1, start_ms - NOW_MS
    assert await bench.spans() == [
        ("active", 0, gone_ms),
        (None, gone_ms, back_ms),
        ("active", back_ms, None),
    ]
    assert await bench.spans("removed meanwhile") == [("parked", 0, gone_ms), (None, gone_ms, None)]


async def test_a_downtime_leaves_the_last_recorded_change_as_it_is(bench: Bench) -> None:
    bench.states["slack"] = "throttled"
    alive_ms = bench.clock.now_ms() - 1000
    async with bench.recording():
        bench.states["crm"] = "paused"
        await rounds(1)
    bench.clock.set_by_ms += HOUR_MS
    start_ms = bench.clock.now_ms()
    async with bench.recording(Downtime(from_ms=alive_ms, to_ms=start_ms, lacks=None)):
        pass
    back_ms = start_ms - NOW_MS
    assert await bench.spans() == [
        ("active", 0, ROUND_MS),
        ("paused", ROUND_MS, ROUND_MS + 1),
        (None, ROUND_MS + 1, back_ms),
        ("paused", back_ms, None),
    ]
    assert (await bench.spans("slack"))[:2] == [
        ("throttled", 0, ROUND_MS + 1),
        (None, ROUND_MS + 1, back_ms),
    ]


async def test_a_clock_set_back_leaves_no_state_in_the_future(bench: Bench) -> None:
    async with bench.recording():
        await rounds(10)
        bench.states["crm"] = "parked"
        await rounds(10)
        bench.clock.set_by_ms -= HOUR_MS
        await rounds(1)
        (span,) = await bench.spans()
        assert span[0] == "parked"
        assert span[1] <= bench.clock.now_ms() - NOW_MS


async def test_a_relay_started_after_its_clock_was_set_back_records_its_states(
    bench: Bench,
) -> None:
    bench.clock.set_by_ms += 24 * HOUR_MS
    async with bench.recording():
        bench.states["crm"] = "parked"
        await rounds(1)
    bench.clock.set_by_ms -= 24 * HOUR_MS
    bench.states["crm"] = "active"
    async with bench.recording():
        pass
    now_ms = bench.clock.now_ms() - NOW_MS
    ((state, from_ms, to_ms),) = await bench.spans()
    assert (state, to_ms) == ("active", None)
    assert from_ms <= now_ms


async def test_a_clock_that_stands_still_keeps_the_last_state(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.clock, "now_ms", lambda: NOW_MS)
    async with bench.recording():
        bench.states["crm"] = "parked"
        await rounds(3)
    assert await bench.spans() == [("parked", 0, None)]


async def leave_room(store: SqliteStore, pages: int) -> None:
    """Let the disk be full after this many more pages."""

    def limit(db: sqlite3.Connection) -> None:
        (used,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {used + pages}").fetchall()

    await store._writer.run_exclusive(limit)


async def test_after_a_full_disk_the_states_are_recorded(bench: Bench) -> None:
    async with bench.recording():
        pass
    alive_ms = bench.clock.now_ms()
    bench.clock.set_by_ms += HOUR_MS
    downtime = Downtime(from_ms=alive_ms, to_ms=bench.clock.now_ms(), lacks=None)
    await leave_room(bench.store, 0)
    many: dict[str, State] = {f"sink-{number:0500}": "active" for number in range(100)}
    bench.states |= many
    async with bench.recording(downtime):
        await rounds(3)
        assert not many.keys() & (await bench.store.sink_states.since(0)).keys()
        await leave_room(bench.store, 1000)
        await rounds(1)
        assert many.keys() < (await bench.store.sink_states.since(0)).keys()
    assert [state for state, *_ in await bench.spans()] == ["active", None, "active"]


async def test_a_failed_write_is_repeated_and_logged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("another program holds the store's write lock (SQLITE_BUSY)")

    with service.logging_to_memory() as lines:
        monkeypatch.setattr(bench.store.sink_states, "note", fail)
        async with bench.recording():
            await rounds(2)
            monkeypatch.undo()
            await rounds(1)
        assert lines.getvalue().count(b"sink_history.stopped") == 3
    assert [state for state, *_ in await bench.spans()] == ["active"]


async def test_a_broken_store_ends_it(bench: Bench) -> None:
    bench.store._writer.mark_broken(StoreBroken("the store is damaged"))
    with pytest.raises(StoreBroken):
        async with asyncio.timeout(60):
            await bench.history().run()
