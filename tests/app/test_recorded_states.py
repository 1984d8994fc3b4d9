"""The states of sinks that a running relay records."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from relay.app import sink_history
from relay.store.sink_states import StateSpan
from tests import service
from tests.app.reloading import party, sink
from tests.operator import ADMIN, operating
from tests.service import Relay, ShiftedClock

HOUR_S = 3600


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_history, "COMPARE_EVERY_S", 0.01)


async def until_recorded(
    relay: Relay, *states: str | None, name: str = "crm"
) -> Sequence[StateSpan]:
    """Wait for the states of a sink, and return their spans."""
    async with asyncio.timeout(10):
        while True:
            spans = (await relay.service._store.sink_states.since(0)).get(name, ())
            if [span.state for span in spans] == list(states):
                return spans
            await asyncio.sleep(0.01)


async def test_pauses_and_absences_are_recorded(tmp_path: Path) -> None:
    clock = ShiftedClock()
    settings = service.read(tmp_path, tables=ADMIN + sink("crm", "http://127.0.0.1:9/"))
    async with service.serving(settings, clock=clock) as relay, operating(relay) as operator:
        await until_recorded(relay, "active")
        await operator.post("/sinks/crm/pause")
        await until_recorded(relay, "active", "paused")
    clock.shift_s += HOUR_S
    async with service.serving(settings, clock=clock) as relay:
        spans = await until_recorded(relay, "active", "paused", None, "paused")
        downtime = relay.service._startup.downtime
        assert downtime is not None
        assert spans[2].from_ms - downtime.from_ms < 60_000
        assert spans[3].from_ms >= downtime.to_ms


async def test_a_reload_that_removes_a_sink_ends_its_state(tmp_path: Path) -> None:
    crm = sink("crm", "http://127.0.0.1:9/")
    async with party(tmp_path, crm) as there:
        await until_recorded(there.relay, "active")
        await there.reload()
        await until_recorded(there.relay, "active", None)
        await there.reload(crm)
        await until_recorded(there.relay, "active", None, "active")
