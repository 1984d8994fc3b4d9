"""The loss that an absence caused, by the sender's retries, and its acknowledgement."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay.app.maintenance import STALL_MS
from relay.core.delivery_rules import WINDOW_MS, Interval, downtime_between
from tests import service
from tests.conftest import NOW_MS
from tests.guarantees import process
from tests.operator import ADMIN, TOKEN, Operator, operating
from tests.service import Relay, ShiftedClock
from tests.stub_server import DEADLINE_S, until

UNACKNOWLEDGED = "relay_unacknowledged_loss_seconds"


@pytest.mark.parametrize("alive_ms", [None, NOW_MS, NOW_MS + 60_000])
def test_a_first_start_and_a_clock_set_back_are_not_downtime(alive_ms: int | None) -> None:
    assert downtime_between(alive_ms, NOW_MS) is None


def test_an_absence_within_the_window_loses_nothing() -> None:
    downtime = downtime_between(NOW_MS - WINDOW_MS, NOW_MS)
    assert downtime is not None
    assert (downtime.seconds, downtime.lacks, downtime.lost_s) == (620, None, 0)


def test_a_longer_absence_loses_its_beginning() -> None:
    downtime = downtime_between(NOW_MS - WINDOW_MS - 90_000, NOW_MS)
    assert downtime is not None
    lost = Interval(from_ms=NOW_MS - WINDOW_MS - 90_000, to_ms=NOW_MS - WINDOW_MS)
    assert (downtime.lacks, downtime.lost_s) == (lost, 90)


async def _stopped(folder: Path, clock: ShiftedClock) -> None:
    async with service.serving(service.read(folder), clock=clock) as relay:
        async with asyncio.timeout(10):
            while not relay.stored("state"):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("away_s", "lost_s"), [(30, 0), (4220, 3600)])
async def test_a_start_reports_the_downtime_before_it(
    tmp_path: Path, away_s: int, lost_s: int
) -> None:
    clock = ShiftedClock()
    await _stopped(tmp_path, clock)
    clock.shift_s = away_s
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        (line,) = relay.lines("relay.was_down")
        assert line["seconds"] == pytest.approx(away_s, abs=10)
        assert line.get("lost_s", 0) == pytest.approx(lost_s, abs=10)
        assert line["level"] == ("warning" if lost_s else "info")
        shown = (await operator.get("/status"))["downtime"]
        assert (shown["to_ms"] - shown["from_ms"]) / 1000 == pytest.approx(away_s, abs=10)
        assert (shown["lacks"] is not None) == bool(lost_s)
        counted = await relay.counts("relay_downtime_lost_seconds")
        assert counted.get((), 0) == pytest.approx(lost_s, abs=10)


async def test_the_first_start_of_a_store_reports_no_downtime(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay, operating(relay) as operator:
        assert relay.lines("relay.was_down") == []
        assert (await operator.get("/status"))["downtime"] is None


async def test_a_store_that_no_relay_has_used_before_is_logged_as_new(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with service.serving(service.read(tmp_path), clock=clock) as relay:
        (line,) = relay.lines("store.new")
        assert (line["level"], line["path"]) == ("info", str(tmp_path / "relay.db"))
        assert "compare [store] in the config" in line["advice"]
    async with service.serving(service.read(tmp_path), clock=clock) as relay:
        assert relay.lines("store.new") == []


@contextlib.asynccontextmanager
async def started(folder: Path, clock: ShiftedClock) -> AsyncIterator[tuple[Relay, Operator]]:
    settings = service.read(folder, tables=ADMIN)
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        yield relay, operator


async def test_a_short_restart_does_not_hide_the_loss_of_the_absence_before_it(
    tmp_path: Path,
) -> None:
    clock = ShiftedClock()
    await _stopped(tmp_path, clock)
    clock.shift_s += 4220
    await _stopped(tmp_path, clock)
    clock.shift_s += 10
    async with started(tmp_path, clock) as (relay, operator):
        assert (await relay.counts("relay_downtime_lost_seconds")).get((), 0) == 0
        # By the first heartbeat, which is beside the start.
        async with asyncio.timeout(DEADLINE_S):
            while not (counts := await relay.counts(UNACKNOWLEDGED)):
                await asyncio.sleep(0.01)
        assert counts[()] == pytest.approx(3600, abs=10)
        status = await operator.get("/status")
        assert status["unacknowledged_loss_ms"] == pytest.approx(3_600_000, abs=10_000)
        short, long = (await operator.get("/absences"))["absences"]
        assert (short["lacks"], short["cause"], long["cause"]) == (None, "stopped", "stopped")
        assert status["unacknowledged"] == [long]
        assert long["lacks"]["to_ms"] == long["to_ms"] - WINDOW_MS


async def test_an_acknowledged_loss_is_no_longer_reported_even_after_a_restart(
    tmp_path: Path,
) -> None:
    clock = ShiftedClock()
    await _stopped(tmp_path, clock)
    clock.shift_s += 4220
    async with started(tmp_path, clock) as (relay, operator):
        (absence,) = (await operator.get("/absences"))["absences"]
        noted = await operator.post(f"/absences/{absence['id']}/acknowledge")
        assert noted["acknowledged_ms"] > absence["to_ms"] - 1
        assert (await relay.counts(UNACKNOWLEDGED)).get((), 0) == 0
        assert (await operator.get("/status"))["unacknowledged"] == []
        clock.shift_s += 60
        again = await operator.post(f"/absences/{absence['id']}/acknowledge")
        assert again == noted
        await operator.post("/absences/99/acknowledge", status=404)
    async with started(tmp_path, clock) as (relay, operator):
        assert (await relay.counts(UNACKNOWLEDGED)).get((), 0) == 0
        assert (await operator.get("/absences"))["absences"][-1] == noted


async def test_a_stall_of_the_running_process_is_an_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.app.maintenance.HEARTBEAT_EVERY_S", 0.02)
    clock = ShiftedClock()
    async with started(tmp_path, clock) as (relay, operator):
        clock.shift_s += STALL_MS // 1000 - 5  # as far as a hiccup goes
        await _beaten(relay, clock)
        clock.shift_s += 4220
        await until(lambda: bool(relay.lines("relay.stalled")), what="the stall's line")
        (absence,) = (await operator.get("/absences"))["absences"]
        assert absence["cause"] == "stalled"
        (line,) = relay.lines("relay.stalled")
        assert line["lost_s"] == pytest.approx(3600, abs=10)
        await relay.until_counted(UNACKNOWLEDGED, value=relay_s(absence))


def relay_s(absence: dict[str, dict[str, int]]) -> float:
    return (absence["lacks"]["to_ms"] - absence["lacks"]["from_ms"]) / 1000


async def _beaten(relay: Relay, clock: ShiftedClock) -> None:
    """Wait for a heartbeat that is as late as the clock is now."""
    now_ms = clock.now_ms()
    async with asyncio.timeout(10):
        while (await relay.service._store.absences.last_alive_ms() or 0) < now_ms:
            await asyncio.sleep(0.01)


async def test_a_relay_without_free_space_is_absent_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.app.maintenance.HEARTBEAT_EVERY_S", 0.02)
    clock = ShiftedClock()
    await _stopped(tmp_path, clock)
    clock.shift_s += 4220
    free: list[int] = [0]
    monkeypatch.setattr("relay.store.sqlite.disk.free_bytes", lambda _: free[0])
    async with started(tmp_path, clock) as (relay, operator):
        assert (await relay.counts("relay_downtime_lost_seconds"))[()] > 0
        assert (await operator.get("/absences"))["absences"] == []
        clock.shift_s += 600
        free[0] = 1 << 40
        await until(lambda: bool(relay.lines("relay.stalled")), what="room for a heartbeat")
        (absence,) = (await operator.get("/absences"))["absences"]
        away_s = (absence["to_ms"] - absence["from_ms"]) / 1000
        assert away_s == pytest.approx(4820, abs=15)


@pytest.mark.servers
async def test_a_killed_relay_has_not_closed_its_store(tmp_path: Path) -> None:
    async with process.Relay(tmp_path, sinks="", rest=ADMIN) as relay:
        await relay.start()
        await relay.kill()
        await relay.start()
        async with process.http_client() as client:
            head = {"authorization": f"Bearer {TOKEN}"}
            answer = await client.get(f"{relay.admin_url}/api/v1/absences", headers=head)
        assert [each["cause"] for each in answer.json()["absences"]] == ["crashed"]
