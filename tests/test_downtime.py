"""What an absence has cost, judged by how long the sender tries."""

import asyncio
from pathlib import Path

import pytest

from relay.delivery_rules import WAITS_S
from relay.downtime import WINDOW_MS, Interval, between
from tests import service
from tests.conftest import NOW_MS
from tests.operator import ADMIN, operating
from tests.service import ShiftedClock


def test_the_window_is_the_senders() -> None:
    assert sum(WAITS_S) * 1000 == WINDOW_MS


@pytest.mark.parametrize("alive_ms", [None, NOW_MS, NOW_MS + 60_000])
def test_a_first_start_and_a_clock_set_back_are_no_downtime(alive_ms: int | None) -> None:
    assert between(alive_ms, NOW_MS) is None


def test_an_absence_within_the_window_lacks_nothing() -> None:
    downtime = between(NOW_MS - WINDOW_MS, NOW_MS)
    assert downtime is not None
    assert (downtime.seconds, downtime.lacks, downtime.lost_s) == (620, None, 0)


def test_of_a_longer_absence_the_beginning_is_lost() -> None:
    downtime = between(NOW_MS - WINDOW_MS - 90_000, NOW_MS)
    assert downtime is not None
    lost = Interval(from_ms=NOW_MS - WINDOW_MS - 90_000, to_ms=NOW_MS - WINDOW_MS)
    assert (downtime.lacks, downtime.lost_s) == (lost, 90)


async def _stopped(folder: Path, clock: ShiftedClock) -> None:
    async with service.serving(service.read(folder), clock=clock) as relay:
        async with asyncio.timeout(10):
            while not relay.stored("state"):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("away_s", "lost_s"), [(30, 0), (4220, 3600)])
async def test_a_start_says_how_long_the_relay_was_away(
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


async def test_the_first_start_of_a_store_says_nothing_of_it(tmp_path: Path) -> None:
    settings = service.read(tmp_path, tables=ADMIN)
    async with service.serving(settings) as relay, operating(relay) as operator:
        assert relay.lines("relay.was_down") == []
        assert (await operator.get("/status"))["downtime"] is None
