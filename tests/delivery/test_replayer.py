"""Replays on a real store; the test itself takes the opened deliveries."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import StoreFull
from relay.core.event import Event
from relay.core.routing import Route, Verdict
from relay.delivery import replayer
from relay.delivery.replayer import EVENTS_PER_STEP, PENDING_MAX, STORE_RETRY_S, TURN_POLL_S
from relay.store import Tier
from relay.store.replays import Mark, PlannedDelivery, Replay
from relay.store.selection import Selection
from relay.store.sqlite.disk import Room
from relay.store.sqlite.replays import SqliteReplays
from tests.conftest import NOW_MS
from tests.delivery.replaying import TAKEN_AT_ONCE, Bench, event, replaying
from tests.store.conformance import settlement

DAY_MS = 86_400_000
ONE: dict[Tier, int] = {"replay": 1}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with replaying(tmp_path) as bench:
        yield bench


async def test_every_selected_event_is_delivered_again_once_and_in_order(bench: Bench) -> None:
    events = [event(number) for number in range(3 * EVENTS_PER_STEP + 7)]
    await bench.accept(*events)
    begun = await bench.begin(Selection())
    assert (begun.state, begun.total) == ("running", len(events))
    taken = await bench.drain(begun)
    assert taken["sales"] == [each.id for each in events]
    ended = await bench.now(begun)
    assert (ended.state, ended.opened) == ("done", len(events))
    assert bench.statuses() == {("sales", "delivered"): len(events)}
    assert bench.woken["sales"] == 4


async def test_a_replay_opens_a_bounded_number_of_deliveries(bench: Bench) -> None:
    await bench.accept(*(event(number) for number in range(PENDING_MAX + 3 * EVENTS_PER_STEP)))
    begun = await bench.begin(Selection())
    assert (await bench.until_still(begun)).opened == PENDING_MAX
    await bench.take()
    assert (await bench.until_still(begun)).opened == PENDING_MAX + EVENTS_PER_STEP


async def test_every_step_of_a_replay_and_its_end_are_counted_for_open_pages(
    tmp_path: Path,
) -> None:
    async with replaying(tmp_path, "sales") as bench:
        await bench.accept(*(event(number) for number in range(2 * EVENTS_PER_STEP)))
        await bench.drain(await bench.begin(Selection()))
        assert bench.activity.counts == {"replay": 3}


async def test_a_fast_sink_never_waits_for_the_next_poll(bench: Bench) -> None:
    count = 4 * PENDING_MAX
    await bench.accept(*(event(number) for number in range(count)))
    await bench.begin(Selection())
    started_s = bench.clock.monotonic()
    taken = 0
    while taken < count:
        taken += len(await bench.take())
        await asyncio.sleep(TAKEN_AT_ONCE / 5000)
    assert taken / (bench.clock.monotonic() - started_s) > 4000


async def test_a_sink_that_takes_nothing_does_not_delay_the_others(tmp_path: Path) -> None:
    async with replaying(tmp_path, "sales", "down") as bench:
        count = PENDING_MAX + 5 * EVENTS_PER_STEP
        await bench.accept(*(event(number) for number in range(count)), sinks=["sales", "down"])
        begun = await bench.begin(Selection())
        taken: list[str] = []
        async with asyncio.timeout(60):
            while len(taken) < count:
                taken += await bench.take("sales")
                await asyncio.sleep(0.01)
        assert await bench.store.replays.under_way(begun.id) == {"down": PENDING_MAX}
        assert (await bench.now(begun)).state == "running"
        rest = await bench.drain(begun, "down")
        assert len(set(rest["down"])) == len(rest["down"]) == count


@contextmanager
def steps_of_sinks_that_take_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[int, set[str]]]]:
    """Record which replay each step is of, and which sinks it opens deliveries for."""
    steps: list[tuple[int, set[str]]] = []
    replays = bench.store.replays

    async def under_way(_: int) -> dict[str, int]:
        return {}

    async def opened(replay: Replay, deliveries: Sequence[PlannedDelivery], **rest: int) -> Replay:
        steps.append((replay.id, {each.sink for each in deliveries}))
        return await SqliteReplays.open(replays, replay, deliveries, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(replays, "under_way", under_way)
        patch.setattr(replays, "open", opened)
        yield steps


async def test_no_replay_waits_for_the_end_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replaying(tmp_path, "sales", "crm") as bench:
        await bench.accept(
            *(event(number) for number in range(6 * EVENTS_PER_STEP)), sinks=["sales", "crm"]
        )
        bench.has_turn = False
        await asyncio.sleep(TURN_POLL_S)
        with steps_of_sinks_that_take_all(bench, monkeypatch) as steps:
            for sink in ("sales", "crm"):
                await bench.begin(Selection(sink=sink))
            bench.has_turn = True
            await asyncio.sleep(2 * TURN_POLL_S)
        assert {sink for _, sinks in steps[:2] for sink in sinks} == {"sales", "crm"}


async def test_no_sink_of_a_replay_waits_for_one_that_has_fallen_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = PENDING_MAX + 9 * EVENTS_PER_STEP
    sinks = ["sales", "slow"]
    async with replaying(tmp_path, *sinks) as bench:
        await bench.accept(*(event(number) for number in range(count)), sinks=sinks)
        begun = await bench.begin(Selection())
        await bench.until_still(begun)
        await bench.take_all("sales")
        await bench.until_still(begun)
        with steps_of_sinks_that_take_all(bench, monkeypatch) as steps:
            await asyncio.sleep(1)
        assert {sink for _, sinks in steps[:2] for sink in sinks} == {"sales", "slow"}


async def test_a_replay_is_done_once_all_its_deliveries_are_settled(bench: Bench) -> None:
    await bench.accept(event(1))
    begun = await bench.begin(Selection())
    assert (await bench.until_still(begun)).state == "running"
    await bench.take()
    assert (await bench.until_still(begun)).state == "done"


async def test_a_replay_resumes_after_a_restart(tmp_path: Path) -> None:
    count = PENDING_MAX + 3 * EVENTS_PER_STEP
    async with replaying(tmp_path) as bench:
        await bench.accept(*(event(number) for number in range(count)))
        begun = await bench.begin(Selection())
        await bench.until_still(begun)
        first = await bench.take()
    async with replaying(tmp_path) as bench:
        rest = (await bench.drain(begun))["sales"]
        assert (await bench.now(begun)).opened == count
    assert Counter(first + rest) == Counter({f"e{number:05}": 1 for number in range(count)})


async def test_a_restart_repeats_nothing_for_a_sink_that_was_ahead(tmp_path: Path) -> None:
    count = PENDING_MAX + 3 * EVENTS_PER_STEP
    sinks = ("sales", "down")
    async with replaying(tmp_path, *sinks) as bench:
        await bench.accept(*(event(number) for number in range(count)), sinks=sinks)
        begun = await bench.begin(Selection())
        taken: list[str] = []
        while len(taken) < count:
            taken += await bench.take("sales")
            await asyncio.sleep(0.01)
        assert (await bench.until_still(begun)).cursor < count
    async with replaying(tmp_path, *sinks) as bench:
        rest = await bench.drain(begun, *sinks)
        assert (rest["sales"], len(rest["down"])) == ([], count)
        assert (await bench.now(begun)).opened == 2 * count


async def test_a_running_replay_is_not_lost_behind_many_newer_ones(tmp_path: Path) -> None:
    async with replaying(tmp_path) as bench:
        await bench.accept(event(1), event(2, kind="video.ready"))
        old = await bench.begin(Selection(kind="lead.*"))
        for _ in range(EVENTS_PER_STEP + 20):
            newer = await bench.store.replays.begin(
                Selection(id="none"), total=0, until=Mark(2, 2), now_ms=NOW_MS
            )
        await bench.until_still(newer)
    async with replaying(tmp_path) as bench:
        assert (await bench.drain(old))["sales"] == ["e00001"]


async def test_cancelling_wakes_sinks_whose_deliveries_waited_for_the_replay(
    tmp_path: Path,
) -> None:
    async with replaying(tmp_path, "sales", "crm") as bench:
        await bench.accept(event(1), sinks=("sales", "crm"))
        begun = await bench.begin(Selection(sink="sales"))
        await bench.until_still(begun)
        bench.woken.clear()
        await bench.replayer.cancel(begun.id)
        assert bench.woken == {"sales": 1}


async def test_a_cancelled_replay_takes_back_deliveries_that_are_not_in_flight(
    bench: Bench,
) -> None:
    count = PENDING_MAX + EVENTS_PER_STEP
    await bench.accept(*(event(number) for number in range(count)))
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    taken = await bench.take()
    (sending,) = (
        await bench.store.lease("sales", now_ms=bench.clock.now_ms(), limits=ONE)
    ).deliveries
    ended = await bench.replayer.cancel(begun.id)
    assert ended is not None
    assert ended.state == "cancelled"
    assert bench.statuses() == {("sales", "delivered"): count - 1, ("sales", "pending"): 1}
    await bench.store.settle(settlement(sending))
    await asyncio.sleep(5)
    assert await bench.take_all() == []
    assert len(taken) == TAKEN_AT_ONCE
    assert (await bench.store.backlogs())["sales"].pending == 0


async def test_a_failure_after_the_cancellation_is_not_retried(tmp_path: Path) -> None:
    async with replaying(tmp_path, "sales", "new") as bench:
        await bench.accept(event(1))
        begun = await bench.begin(Selection())
        await bench.until_still(begun)
        before = bench.refetch
        leases = [
            await bench.store.lease(sink, now_ms=bench.clock.now_ms(), limits=ONE)
            for sink in ("sales", "new")
        ]
        sending = [each for lease in leases for each in lease.deliveries]
        ended = await bench.replayer.cancel(begun.id)
        assert ended is not None
        assert (bench.refetch, ended.opened) == (before + 2, 2)
        await bench.store.settle(*(settlement(each, "retry", reason="503") for each in sending))
        assert bench.statuses() == {("sales", "delivered"): 1}
        backlogs = await bench.store.backlogs()
        assert {sink: each.pending for sink, each in backlogs.items()} == {"sales": 0, "new": 0}
        assert (await bench.now(begun)).opened == 0


async def test_an_attempt_that_failed_just_before_the_cancellation_is_taken_back(
    bench: Bench,
) -> None:
    await bench.accept(event(1))
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    lease = await bench.store.lease("sales", now_ms=bench.clock.now_ms(), limits=ONE)
    settling = asyncio.create_task(
        bench.store.settle(settlement(lease.deliveries[0], "retry", reason="503"))
    )
    await asyncio.sleep(0)
    await bench.replayer.cancel(begun.id)
    await settling
    assert bench.statuses() == {("sales", "delivered"): 1}


async def test_a_kill_after_the_cancellation_repeats_nothing(tmp_path: Path) -> None:
    async with replaying(tmp_path) as bench:
        await bench.accept(event(1), event(2))
        begun = await bench.begin(Selection())
        await bench.until_still(begun)
        await bench.store.lease("sales", now_ms=bench.clock.now_ms(), limits=ONE)
        await bench.replayer.cancel(begun.id)
        assert bench.statuses()["sales", "pending"] == 1
    async with replaying(tmp_path) as bench:
        assert bench.statuses() == {("sales", "delivered"): 2}
        assert await bench.take_all() == []
        assert await bench.store.backlogs() == {}


async def test_deliveries_pending_at_its_start_are_not_part_of_a_replay(tmp_path: Path) -> None:
    count = PENDING_MAX + EVENTS_PER_STEP
    async with replaying(tmp_path) as bench:
        await bench.accept(*(event(number) for number in range(count)))
        verdict = Verdict("sales", "takes", "")
        late = [event(count + number) for number in range(TAKEN_AT_ONCE)]
        for each in late:
            await bench.store.accept(each, [verdict], lambda _: None)
        begun = await bench.begin(Selection())
        assert begun.total == count
        await bench.until_still(begun)
        first = await bench.take()
        assert first[:TAKEN_AT_ONCE] == [each.id for each in late]
    async with replaying(tmp_path) as bench:
        taken = first[TAKEN_AT_ONCE:] + (await bench.drain(begun))["sales"]
        now = await bench.now(begun)
        assert (now.opened, now.total) == (count, count)
        assert Counter(taken) == Counter(f"e{number:05}" for number in range(count))


async def test_deliveries_that_a_reload_adds_are_added_to_the_total(bench: Bench) -> None:
    await bench.accept(*(event(number) for number in range(PENDING_MAX + EVENTS_PER_STEP)))
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    bench.replayer.routes = [Route("sales"), Route("new")]
    await bench.drain(begun, "sales", "new")
    now = await bench.now(begun)
    assert now.opened == now.total > begun.total


async def test_an_empty_replay_is_not_started(bench: Bench) -> None:
    await bench.accept(event(1))
    assert await bench.replayer.begin(Selection(outcome="dead")) is None
    assert await bench.store.replays.newest(before=None, limit=5) == []


async def test_only_a_running_replay_can_be_cancelled(bench: Bench) -> None:
    await bench.accept(event(1))
    begun = await bench.begin(Selection())
    await bench.drain(begun)
    ended = await bench.replayer.cancel(begun.id)
    assert ended is not None
    assert ended.state == "done"
    assert await bench.replayer.cancel(99) is None


async def test_cancelling_a_replay_that_has_just_ended_takes_nothing_back(bench: Bench) -> None:
    await bench.accept(event(1))
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    await bench.store.replays.end(begun, "done", now_ms=NOW_MS)
    late = await bench.store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    assert late.state == "done"
    assert bench.statuses() == {("sales", "pending"): 1}


async def test_a_sink_that_is_removed_ends_its_part_of_the_replay(tmp_path: Path) -> None:
    async with replaying(tmp_path, "sales", "gone") as bench:
        count = PENDING_MAX + EVENTS_PER_STEP
        await bench.accept(*(event(number) for number in range(count)), sinks=["sales", "gone"])
        begun = await bench.begin(Selection())
        await bench.until_still(begun)
        bench.replayer.routes = [Route("sales")]
        taken = await bench.drain(begun, "sales")
        assert len(taken["sales"]) == count
        assert (await bench.store.backlogs())["gone"].pending == PENDING_MAX


async def test_a_changed_route_applies_to_the_rest(bench: Bench) -> None:
    await bench.accept(
        *(event(number, kind="video.ready") for number in range(PENDING_MAX)),
        event(PENDING_MAX, kind="video.ready"),
        event(PENDING_MAX + 1),
    )
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    bench.replayer.routes = [Route("sales", events=["lead.*"])]
    taken = await bench.drain(begun)
    assert taken["sales"][PENDING_MAX:] == [f"e{PENDING_MAX + 1:05}"]


async def test_an_event_without_its_body_is_not_counted_and_not_sent(bench: Bench) -> None:
    await bench.accept(event(1, at_ms=NOW_MS - 40 * DAY_MS), event(2))
    while await bench.store.expire(now_ms=NOW_MS):
        pass
    begun = await bench.begin(Selection())
    assert begun.total == 1
    assert (await bench.drain(begun))["sales"] == ["e00002"]


async def test_a_body_that_expires_between_read_and_open_is_skipped(bench: Bench) -> None:
    # The replayer's first look may find the replay, and open its deliveries before the test.
    bench.has_turn = False
    await bench.accept(event(1, at_ms=NOW_MS - 40 * DAY_MS), event(2))
    begun = await bench.store.replays.begin(Selection(), total=2, until=Mark(2, 2), now_ms=NOW_MS)
    while await bench.store.expire(now_ms=NOW_MS):
        pass
    named = [(1, "sales"), (2, "sales"), (1, "new"), (99, "new")]
    wanted = [PlannedDelivery(*each) for each in named]
    now = await bench.store.replays.open(begun, wanted, cursor=2, now_ms=NOW_MS)
    assert now.opened == 1
    assert await bench.take() == ["e00002"]


async def test_a_full_disk_delays_a_replay_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    def require(_: Room) -> None:
        raise StoreFull("less than min_free is free")

    await bench.accept(*(event(number) for number in range(2 * EVENTS_PER_STEP)))
    with monkeypatch.context() as patch:
        patch.setattr(Room, "require", require)
        begun = await bench.begin(Selection())
        await asyncio.sleep(10 * STORE_RETRY_S)
        assert (await bench.now(begun)).opened == 0
    assert len((await bench.drain(begun))["sales"]) == 2 * EVENTS_PER_STEP


async def test_two_replays_run_in_parallel_and_open_no_delivery_twice(bench: Bench) -> None:
    count = PENDING_MAX + 2 * EVENTS_PER_STEP
    await bench.accept(*(event(number) for number in range(count)))
    await bench.accept(
        *(event(count + number, kind="video.ready") for number in range(EVENTS_PER_STEP))
    )
    every = await bench.begin(Selection())
    videos = await bench.begin(Selection(kind="video.*"))
    taken = await bench.drain(every)
    assert (await bench.now(videos)).state == "done"
    assert set(Counter(taken["sales"]).values()) == {1}
    assert len(taken["sales"]) == count + EVENTS_PER_STEP
    opened = (await bench.now(every)).opened, (await bench.now(videos)).opened
    assert opened == (count, EVENTS_PER_STEP)


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        (Selection(since_ms=NOW_MS - 10), [3, 4]),
        (Selection(until_ms=NOW_MS - 10), [1, 2]),
        (Selection(since_ms=NOW_MS - 15, until_ms=NOW_MS - 5), [3]),
        (Selection(kind="video.*"), [2, 3]),
        (Selection(kind="lead.captured"), [1, 4]),
        (Selection(video="vid_1"), [2]),
        (Selection(video="vid_2", kind="video.watched"), [3]),
        (Selection(email="ADA@example.com"), [1, 3]),
        (Selection(outcome="dead"), [3, 4]),
        (Selection(outcome="missed"), [3, 4]),
        (Selection(outcome="delivered"), [1, 2]),
        (Selection(outcome="dead", reason="full"), [4]),
    ],
)
async def test_a_replay_opens_the_deliveries_that_its_forecast_counted(
    selection: Selection, numbers: list[int], bench: Bench
) -> None:
    await bench.accept(
        event(1, at_ms=NOW_MS - 30, email="ada@example.com"),
        event(2, kind="video.ready", at_ms=NOW_MS - 20, id="vid_1"),
    )
    viewer = {"viewer": {"email": "Ada@example.com"}, "video": {"id": "vid_2"}}
    third = event(3, kind="video.watched", at_ms=NOW_MS - 10, **viewer)
    await _die(bench, third, "refused")
    await _die(bench, event(4, at_ms=NOW_MS, email="bob@example.com"), "full")
    assert (await bench.replayer.count(selection)).deliveries.total() == len(numbers)
    begun = await bench.begin(selection)
    assert begun.total == len(numbers)
    assert (await bench.drain(begun))["sales"] == [f"e{number:05}" for number in numbers]


async def _die(bench: Bench, dying: Event, reason: str, *sinks: str) -> None:
    for sink in sinks or ("sales",):
        verdict = Verdict(sink, "fails", reason)
        await bench.store.accept(dying, [verdict], lambda _: None)


async def test_only_the_dead_letters_of_the_reason_are_opened(tmp_path: Path) -> None:
    async with replaying(tmp_path, "sales", "crm") as bench:
        verdicts = [Verdict("sales", "fails", "full"), Verdict("crm", "fails", "refused")]
        await bench.store.accept(event(1), verdicts, lambda _: None)
        begun = await bench.begin(Selection(outcome="dead", reason="full"))
        taken = await bench.drain(begun, "sales", "crm")
        assert taken == {"sales": ["e00001"], "crm": []}
        assert begun.total == 1


async def test_a_sink_added_later_can_get_past_events(tmp_path: Path) -> None:
    async with replaying(tmp_path, "sales", "new") as bench:
        await bench.accept(event(1), event(2))
        selection = Selection(sink="new", outcome="missed")
        forecast = await bench.replayer.count(selection)
        assert forecast.deliveries == {("lead.captured", "new", None): 2}
        begun = await bench.begin(selection)
        assert (await bench.drain(begun, "sales", "new")) == {
            "sales": [],
            "new": ["e00001", "e00002"],
        }


async def test_events_accepted_during_a_replay_are_not_part_of_it(bench: Bench) -> None:
    await bench.accept(event(1))
    begun = await bench.begin(Selection())
    await bench.accept(event(2))
    await bench.drain(begun)
    assert (await bench.now(begun)).opened == 1


async def test_large_bodies_are_not_all_read_at_once(bench: Bench) -> None:
    await bench.accept(*(event(number, page="x" * 400_000) for number in range(7)))
    chosen = await bench.store.replays.choose(
        Selection(), (), after=0, until=Mark(7, 0), limit=EVENTS_PER_STEP
    )
    assert len(chosen) == 3
    begun = await bench.begin(Selection())
    assert begun.total == 7
    assert len((await bench.drain(begun))["sales"]) == 7


async def test_a_failing_sink_gets_all_of_its_replay_in_the_end(bench: Bench) -> None:
    await bench.accept(*(event(number) for number in range(5)))
    begun = await bench.begin(Selection())
    await bench.until_still(begun)
    assert len(await bench.take(result="retry")) == 5
    assert (await bench.until_still(begun)).state == "running"
    assert len((await bench.drain(begun))["sales"]) == 5


async def test_a_count_tells_its_progress_and_is_the_same_in_steps_of_any_size(
    monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    await bench.accept(*(event(number) for number in range(3 * EVENTS_PER_STEP)))
    whole = await bench.replayer.count(Selection())
    monkeypatch.setattr(replayer, "STEP_EVENTS", EVENTS_PER_STEP - 1)
    told: list[tuple[float, int]] = []
    stepped = await bench.replayer.count(
        Selection(), progress=lambda share, count: told.append((share, count))
    )
    assert stepped == whole
    assert told == sorted(told)
    assert (len(told) > 3, told[-1]) == (True, (1.0, 3 * EVENTS_PER_STEP))
    limited = await bench.replayer.count(Selection(before=EVENTS_PER_STEP))
    assert limited.events == EVENTS_PER_STEP - 1


async def test_no_step_of_a_replay_looks_through_the_whole_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayer, "STEP_EVENTS", 7)
    monkeypatch.setattr(replayer, "STEP_S", 1e-9)
    async with replaying(tmp_path) as bench:
        await bench.accept(*(event(number) for number in range(100)))
        begun = await bench.begin(Selection(id=event(99).id))
        looks, choose = list[int](), bench.store.replays.choose

        async def counting_choose(*arguments: Any, after: int, until: Mark, limit: int) -> Any:
            looks.append(until.event - after)
            return await choose(*arguments, after=after, until=until, limit=limit)

        monkeypatch.setattr(bench.store.replays, "choose", counting_choose)
        await bench.drain(begun)
        assert (await bench.now(begun)).opened == 1
        assert 0 < max(looks) <= 7


async def test_a_replay_takes_the_total_of_a_count_just_made(bench: Bench) -> None:
    await bench.accept(event(1), event(2))
    begun = await bench.replayer.begin(Selection(), counted=3)
    assert begun is not None
    assert begun.total == 3
    await bench.drain(begun)
    assert (await bench.now(begun)).opened == 2


async def test_a_relay_without_its_turn_leaves_replays_alone(bench: Bench) -> None:
    await bench.accept(event(1))
    bench.has_turn = False
    begun = await bench.begin(Selection())
    assert (await bench.until_still(begun)).opened == 0
    bench.has_turn = True
    await bench.drain(begun)
    assert (await bench.now(begun)).opened == 1
