"""Order and size of a dispatcher's prefetch buffer."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import Delivery
from relay.core.event import LEAD_CAPTURED
from relay.delivery.circuit_breaker import SendCapacity
from relay.delivery.prefetch import (
    BUFFERED_BYTES_MAX,
    BUFFERED_SLOTS_MAX,
    FETCH_MIN,
    QUIET_S,
    REPLAY_GAP_S,
    RETRY_SHARE,
    PrefetchBuffer,
)

TIERS = {"live", "tried", "replay"}
EVENT = sample_events.event(LEAD_CAPTURED, source="main", event_id="evt")


def live(count: int, *, start: int = 1) -> list[Delivery]:
    return [
        Delivery(seq=seq, sink="sales", event=EVENT, attempts=0, first_attempt_ms=None)
        for seq in range(start, start + count)
    ]


def replayed(count: int, *, start: int = 1001) -> list[Delivery]:
    return [replace(each, replay=1) for each in live(count, start=start)]


def tried(count: int, *, start: int = 5001) -> list[Delivery]:
    return [replace(each, tries=1) for each in live(count, start=start)]


def pop(buffer: PrefetchBuffer, count: int, now_s: float) -> list[Delivery]:
    return buffer.pop(SendCapacity(count, count), now_s)


def seqs(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.seq for each in deliveries]


def popped(buffer: PrefetchBuffer, *, from_s: float = 0.0) -> list[int]:
    """Pop all deliveries one by one, far enough apart that none has to wait."""
    numbers = []
    while buffer:
        from_s += QUIET_S
        numbers += seqs(pop(buffer, 1, from_s))
    return numbers


def test_live_deliveries_come_before_replayed_ones_each_in_order() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*replayed(2), *live(1)])
    buffer.add([*live(1, start=2), *replayed(1, start=1003)])
    assert popped(buffer) == [1, 2, 1001, 1002, 1003]


def test_a_late_live_delivery_goes_before_buffered_replays() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add(replayed(3))
    assert seqs(pop(buffer, 1, 0.0)) == [1001]
    buffer.add(live(1))
    assert popped(buffer) == [1, 1002, 1003]


def test_an_empty_buffer_demands_every_tier_and_pops_nothing() -> None:
    buffer = PrefetchBuffer(4)
    assert not buffer
    assert buffer.demand() == dict.fromkeys(TIERS, 8 + FETCH_MIN)
    assert pop(buffer, 1, 0.0) == []


def test_nothing_is_fetched_until_live_deliveries_run_low() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add(live(8))
    assert buffer.demand() == {}
    pop(buffer, 1, 0.0)
    assert set(buffer.demand()) == TIERS


def test_a_tier_with_enough_buffered_is_not_fetched() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add(replayed(8))
    assert set(buffer.demand()) == {"live", "tried"}


def test_nothing_more_is_fetched_while_large_bodies_are_buffered() -> None:
    buffer = PrefetchBuffer(4)
    large = [
        replace(each, event=replace(EVENT, body=bytes(BUFFERED_BYTES_MAX // 2))) for each in live(2)
    ]
    buffer.add(large[:1])
    assert set(buffer.demand()) == TIERS
    buffer.add(large[1:])
    assert buffer.demand() == {}
    pop(buffer, 1, 0.0)
    assert set(buffer.demand()) == TIERS
    buffer.add(large[:1])
    buffer.clear()
    assert set(buffer.demand()) == TIERS


@given(
    slots=st.integers(1, 500),
    fetches=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))),
)
def test_no_tier_exceeds_the_capacity_of_the_buffer(
    slots: int, fetches: list[tuple[int, int, int]]
) -> None:
    buffer, held, now_s = PrefetchBuffer(slots), {"live": 0, "replay": 0}, 0.0
    low = 2 * min(slots, BUFFERED_SLOTS_MAX)
    most = low + max(low, FETCH_MIN)
    for lives, replays, pops in fetches:
        limits = buffer.demand()
        taken = {"live": min(lives, limits.get("live", 0))}
        taken["replay"] = min(replays, limits.get("replay", 0))
        buffer.add([*replayed(taken["replay"]), *live(taken["live"])])
        held = {tier: count + taken[tier] for tier, count in held.items()}
        assert max(held.values()) <= most
        for _ in range(min(pops, sum(held.values()))):
            now_s += QUIET_S
            (delivery,) = pop(buffer, 1, now_s)
            tier = "replay" if delivery.replay else "live"
            assert tier == ("live" if held["live"] else "replay")
            held[tier] -= 1
    assert len(popped(buffer, from_s=now_s)) == sum(held.values())


def test_a_skipped_tier_that_runs_low_needs_another_fetch() -> None:
    buffer = PrefetchBuffer(2)
    buffer.add(replayed(4))
    buffer.fetched(buffer.demand())
    assert not buffer.is_short()
    pop(buffer, 1, 0.0)
    assert buffer.is_short()
    buffer.fetched(buffer.demand())
    assert not buffer.is_short()


def test_clear_returns_and_removes_all_deliveries() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*replayed(1), *live(2)])
    assert [each.seq for each in buffer.clear()] == [1, 2, 1001]
    assert not buffer
    assert buffer.clear() == ()


def test_replays_go_without_a_gap_while_nothing_is_live() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add(replayed(2))
    assert buffer.wait_s(10.0) == 0
    pop(buffer, 1, 10.0)
    assert buffer.wait_s(10.0) == 0


@pytest.mark.parametrize(("count", "taken"), [(0, []), (2, [1, 2]), (3, [1, 2, 3])])
def test_pop_returns_at_most_the_requested_number(count: int, taken: list[int]) -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*live(3), *replayed(2)])
    assert seqs(pop(buffer, count, 10.0)) == taken


def test_one_replay_goes_with_live_deliveries_and_any_number_alone() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*live(2), *replayed(4)])
    assert seqs(pop(buffer, 8, 10.0)) == [1, 2, 1001]
    assert seqs(pop(buffer, 8, 10.0)) == []
    assert seqs(pop(buffer, 2, 10.0 + QUIET_S)) == [1002, 1003]


def test_replays_keep_their_gap_while_live_deliveries_flow() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*live(1), *replayed(3)])
    pop(buffer, 1, 10.0)
    assert buffer.wait_s(10.0) == 0
    pop(buffer, 1, 10.0)
    assert buffer.wait_s(10.0) == pytest.approx(REPLAY_GAP_S)
    assert buffer.wait_s(10.0 + REPLAY_GAP_S) == 0
    pop(buffer, 1, 10.0 + QUIET_S)
    assert buffer.wait_s(10.0 + QUIET_S) == 0


def test_a_live_delivery_never_waits_for_a_replayed_one() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*live(1), *replayed(2)])
    pop(buffer, 1, 10.0)
    pop(buffer, 1, 10.0)
    buffer.add(live(1, start=2))
    assert buffer.wait_s(10.0) == 0
    assert seqs(pop(buffer, 1, 10.0)) == [2]


def test_one_in_four_sends_is_a_retry_while_untried_ones_wait() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*tried(2), *live(9)])
    assert popped(buffer) == [1, 2, 3, 5001, 4, 5, 6, 5002, 7, 8, 9]
    assert RETRY_SHARE == 4


def test_a_retry_goes_alone_whether_live_or_replayed() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*tried(2), *(replace(each, replay=1) for each in tried(1, start=5003))])
    assert [seqs(pop(buffer, 8, 0.0)) for _ in range(4)] == [[5001], [5002], [5003], []]


def test_no_retry_goes_without_room_for_one() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*tried(2), *live(1)])
    assert [seqs(buffer.pop(SendCapacity(8, 0), 0.0)) for _ in range(2)] == [[1], []]
    assert (buffer.has_tried, buffer.has_untried) == (True, False)


def test_probes_are_deliveries_never_tried_while_there_are_any() -> None:
    buffer = PrefetchBuffer(4)
    buffer.add([*tried(2), *live(6), *replayed(1)])
    room = SendCapacity(1, 1)
    probes = [seqs(buffer.pop_probe(room, number * QUIET_S)) for number in range(9)]
    assert probes == [[1], [2], [3], [4], [5], [6], [1001], [5001], [5002]]
    assert buffer.pop_probe(room, 0.0) == []
