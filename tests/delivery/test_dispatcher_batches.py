"""A dispatcher with a batch sink: how batches form, and the outcome of each event."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from relay.core.config_values import Duration
from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Refused, Temporary
from relay.core.sink import Outcomes
from relay.delivery.reporter import REASONS_MAX
from tests.delivery.dispatching import Bench, ScriptedBatches, policy, rate, working

IDS = [f"evt_{number:02}" for number in range(12)]


@pytest.fixture
def sink() -> ScriptedBatches:
    return ScriptedBatches()


async def work_through(bench: Bench, *ids: str) -> None:
    """Accept events before the first fetch."""
    await bench.accept(*ids, wake=False)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(bench.dispatcher.run())
        await bench.settled()
        await bench.dispatcher.drain(Duration.parse("1s"))


async def test_waiting_events_are_sent_together_and_in_order(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    async with working(tmp_path, started=False, sink=sink, concurrency=8) as bench:
        await work_through(bench, *IDS)
    assert sink.batches == [IDS[:4], IDS[4:8], IDS[8:]]


async def test_a_new_event_is_sent_at_once_and_alone(tmp_path: Path, sink: ScriptedBatches) -> None:
    async with working(tmp_path, sink=sink, concurrency=8) as bench:
        for event_id in IDS[:2]:
            await bench.accept(event_id)
            await bench.settled(within_s=0.2)
    assert sink.batches == [["evt_00"], ["evt_01"]]


async def test_events_that_arrive_while_all_batches_are_in_flight_form_the_next(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.always = 1.0
    async with working(tmp_path, sink=sink, concurrency=8) as bench:
        for event_id in IDS[:5]:
            await bench.accept(event_id)
            await asyncio.sleep(0.01)
        await bench.settled()
    assert sink.batches == [["evt_00"], ["evt_01"], ["evt_02", "evt_03", "evt_04"]]


async def test_no_more_events_are_in_flight_than_there_are_slots(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.always = 1.0
    async with working(tmp_path, started=False, sink=sink, concurrency=5) as bench:
        await work_through(bench, *IDS)
    assert sink.most_in_flight == 4
    assert max(map(len, sink.batches)) == 2


async def test_each_event_of_a_batch_has_its_own_outcome(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.reply(Temporary("not now"), to="evt_01")
    sink.reply(Refused("never this one"), to="evt_02")
    async with working(tmp_path, started=False, sink=sink, concurrency=8) as bench:
        await work_through(bench, *IDS[:4])
        assert await bench.dead() == 1
    assert sink.batches == [IDS[:4], ["evt_01"]]
    assert sorted(event_id for _, event_id in sink.done) == ["evt_00", "evt_01", "evt_03"]


async def test_a_fault_of_the_whole_batch_fails_each_event_and_each_is_retried_alone(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    def fail(_: Outcomes) -> Outcomes:
        sink.outcomes = lambda outcomes: outcomes
        raise Temporary("connection refused")

    sink.outcomes = fail
    async with working(
        tmp_path, started=False, sink=sink, concurrency=8, retry=policy(first="5s")
    ) as bench:
        await work_through(bench, *IDS[:3])
    assert sorted(sink.batches) == [["evt_00"], IDS[:3], ["evt_01"], ["evt_02"]]


async def test_a_sink_that_fails_is_probed_by_a_single_event(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.reply(*[Misconfigured("no such queue")] * 9)
    async with working(tmp_path, started=False, sink=sink, concurrency=8) as bench:
        await work_through(bench, *IDS)
    assert [len(batch) for batch in sink.batches[:4]] == [4, 4, 1, 1]
    assert {event_id for _, event_id in sink.done} == set(IDS)


async def test_a_rate_splits_a_batch(tmp_path: Path, sink: ScriptedBatches) -> None:
    async with working(
        tmp_path, started=False, sink=sink, concurrency=8, rate=rate("2/s")
    ) as bench:
        await work_through(bench, *IDS[:4])
    assert [len(batch) for batch in sink.batches] == [1, 1, 1, 1]
    assert sink.times[-1] - sink.times[0] >= 1.5


async def test_under_backpressure_a_batch_is_one_event(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    async with working(tmp_path, started=False, sink=sink, concurrency=8) as bench:
        with bench.busy():
            await work_through(bench, *IDS[:4])
    assert [len(batch) for batch in sink.batches] == [1, 1, 1, 1]


async def test_a_batch_that_outlives_the_grace_is_due_again(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.always = 60.0
    async with working(tmp_path, sink=sink, concurrency=8) as bench:
        await bench.accept(*IDS[:3])
        async with asyncio.timeout(1):
            while not sink.in_flight:
                await asyncio.sleep(0.01)
        await bench.dispatcher.drain(Duration.parse("1s"))
        assert await bench.pending() == 3
    assert not sink.done


async def test_events_refused_before_sending_do_not_delay_the_others(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    ids = [f"evt_{number:03}" for number in range(301)]
    # By event, because of two batches in flight either may come first.
    for event_id in ids[:300]:
        sink.reply(*[Refused("no template fits")] * 50, to=event_id)
    async with working(tmp_path, started=False, sink=sink, concurrency=8) as bench:
        await work_through(bench, *ids)
        assert await bench.dead() == 300
    assert [event_id for _, event_id in sink.done] == ["evt_300"]
    assert sink.always == SinkResponse(200, "ok")


async def lines_of(
    folder: Path, sink: ScriptedBatches, *ids: str
) -> list[MutableMapping[str, Any]]:
    """Send a batch, and return the warnings of its first failure."""
    with structlog.testing.capture_logs() as lines:
        async with working(
            folder, started=False, sink=sink, concurrency=24, retry=policy(first="5s")
        ) as bench:
            await work_through(bench, *ids)
    return [
        line
        for line in lines
        if line["event"].startswith("delivery.") and line["log_level"] == "warning"
    ]


async def test_a_failed_batch_is_logged_in_one_line_with_count_and_reason(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    for event_id in IDS:
        sink.reply(Temporary("connection refused"), to=event_id)
    (line,) = await lines_of(tmp_path, sink, *IDS)
    del line["log_level"]
    assert line == {
        "event": "delivery.retry",
        "sink": "sales",
        "count": len(IDS),
        "reason": "connection refused",
    }


async def test_a_failed_batch_with_many_reasons_names_some_and_counts_the_rest(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    for number, event_id in enumerate(IDS):
        sink.reply(Temporary(f"reason {number // 2}"), to=event_id)
    (line,) = await lines_of(tmp_path, sink, *IDS)
    named = "; ".join(f"reason {number}" for number in range(REASONS_MAX))
    assert line["reason"] == f"{named}; and {len(IDS) // 2 - REASONS_MAX} more"


async def test_each_dead_letter_of_a_failed_batch_has_a_log_line(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    for event_id in IDS:
        dies = event_id in IDS[:2]
        sink.reply(Refused("not this") if dies else Temporary("later"), to=event_id)
    lines = await lines_of(tmp_path, sink, *IDS)
    logged = [(line["event"], line.get("id"), line.get("count")) for line in lines]
    assert logged == [
        ("delivery.dead", IDS[0], None),
        ("delivery.dead", IDS[1], None),
        ("delivery.retry", None, len(IDS) - 2),
    ]


async def test_a_single_failure_is_logged_with_its_id(
    tmp_path: Path, sink: ScriptedBatches
) -> None:
    sink.reply(Temporary("later"), to=IDS[0])
    (line,) = await lines_of(tmp_path, sink, *IDS[:3])
    assert (line["event"], line["id"], line["reason"]) == ("delivery.retry", IDS[0], "later")
