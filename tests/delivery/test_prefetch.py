"""What a dispatcher has at hand: live before replayed, and no more of either than it needs."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import Delivery
from relay.core.event import LEAD_CAPTURED
from relay.delivery.circuit_breaker import Room
from relay.delivery.prefetch import (
    APART_S,
    BYTES_MAX,
    HANDFUL,
    QUIET_S,
    SHARE,
    SLOTS_MAX,
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


def pop(hand: PrefetchBuffer, count: int, now_s: float) -> list[Delivery]:
    return hand.pop(Room(count, count), now_s)


def seqs(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.seq for each in deliveries]


def popped(hand: PrefetchBuffer, *, from_s: float = 0.0) -> list[int]:
    """All of them, one by one, with so much time between them that none has to wait."""
    found = []
    while hand:
        from_s += QUIET_S
        found += seqs(pop(hand, 1, from_s))
    return found


def test_live_deliveries_come_before_replayed_ones_each_in_order() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*replayed(2), *live(1)])
    hand.take([*live(1, start=2), *replayed(1, start=1003)])
    assert popped(hand) == [1, 2, 1001, 1002, 1003]


def test_a_live_delivery_that_comes_late_is_still_the_next() -> None:
    hand = PrefetchBuffer(4)
    hand.take(replayed(3))
    assert seqs(pop(hand, 1, 0.0)) == [1001]
    hand.take(live(1))
    assert popped(hand) == [1, 1002, 1003]


def test_an_empty_hand_wants_of_both_and_has_nothing_to_give() -> None:
    hand = PrefetchBuffer(4)
    assert not hand
    assert hand.wants() == dict.fromkeys(TIERS, 8 + HANDFUL)
    assert pop(hand, 1, 0.0) == []


def test_replays_are_asked_for_only_where_live_ones_run_low() -> None:
    hand = PrefetchBuffer(4)
    hand.take(live(8))
    assert hand.wants() == {}
    pop(hand, 1, 0.0)
    assert set(hand.wants()) == TIERS


def test_a_tier_with_enough_at_hand_is_not_asked_for() -> None:
    hand = PrefetchBuffer(4)
    hand.take(replayed(8))
    assert set(hand.wants()) == {"live", "tried"}


def test_nothing_more_is_wanted_while_large_bodies_are_at_hand() -> None:
    hand = PrefetchBuffer(4)
    large = [replace(each, event=replace(EVENT, body=bytes(BYTES_MAX // 2))) for each in live(2)]
    hand.take(large[:1])
    assert set(hand.wants()) == TIERS
    hand.take(large[1:])
    assert hand.wants() == {}
    pop(hand, 1, 0.0)
    assert set(hand.wants()) == TIERS
    hand.take(large[:1])
    hand.clear()
    assert set(hand.wants()) == TIERS


@given(
    slots=st.integers(1, 500),
    looks=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))),
)
def test_no_more_of_a_tier_are_held_than_for_the_slots_four_times_or_a_handful_more(
    slots: int, looks: list[tuple[int, int, int]]
) -> None:
    hand, held, now_s = PrefetchBuffer(slots), {"live": 0, "replay": 0}, 0.0
    low = 2 * min(slots, SLOTS_MAX)
    most = low + max(low, HANDFUL)
    for lives, replays, pops in looks:
        limits = hand.wants()
        taken = {"live": min(lives, limits.get("live", 0))}
        taken["replay"] = min(replays, limits.get("replay", 0))
        hand.take([*replayed(taken["replay"]), *live(taken["live"])])
        held = {tier: count + taken[tier] for tier, count in held.items()}
        assert max(held.values()) <= most
        for _ in range(min(pops, sum(held.values()))):
            now_s += QUIET_S
            (delivery,) = pop(hand, 1, now_s)
            tier = "replay" if delivery.replay else "live"
            assert tier == ("live" if held["live"] else "replay")
            held[tier] -= 1
    assert len(popped(hand, from_s=now_s)) == sum(held.values())


def test_a_tier_that_was_passed_over_and_runs_low_needs_another_look() -> None:
    hand = PrefetchBuffer(2)
    hand.take(replayed(4))
    hand.looked(hand.wants())
    assert not hand.is_short()
    pop(hand, 1, 0.0)
    assert hand.is_short()
    hand.looked(hand.wants())
    assert not hand.is_short()


def test_what_is_given_up_is_returned_and_gone() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*replayed(1), *live(2)])
    assert [each.seq for each in hand.clear()] == [1, 2, 1001]
    assert not hand
    assert hand.clear() == ()


def test_replayed_deliveries_go_one_after_the_other_without_a_wait_where_nothing_is_live() -> None:
    hand = PrefetchBuffer(4)
    hand.take(replayed(2))
    assert hand.wait_s(10.0) == 0
    pop(hand, 1, 10.0)
    assert hand.wait_s(10.0) == 0


@pytest.mark.parametrize(("count", "taken"), [(0, []), (2, [1, 2]), (3, [1, 2, 3])])
def test_no_more_are_taken_than_asked_for(count: int, taken: list[int]) -> None:
    hand = PrefetchBuffer(4)
    hand.take([*live(3), *replayed(2)])
    assert seqs(pop(hand, count, 10.0)) == taken


def test_with_live_deliveries_goes_one_replayed_one_and_alone_go_as_many_as_asked_for() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*live(2), *replayed(4)])
    assert seqs(pop(hand, 8, 10.0)) == [1, 2, 1001]
    assert seqs(pop(hand, 8, 10.0)) == []
    assert seqs(pop(hand, 2, 10.0 + QUIET_S)) == [1002, 1003]


def test_beside_live_deliveries_replayed_ones_keep_apart() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*live(1), *replayed(3)])
    pop(hand, 1, 10.0)
    assert hand.wait_s(10.0) == 0
    pop(hand, 1, 10.0)
    assert hand.wait_s(10.0) == pytest.approx(APART_S)
    assert hand.wait_s(10.0 + APART_S) == 0
    pop(hand, 1, 10.0 + QUIET_S)
    assert hand.wait_s(10.0 + QUIET_S) == 0


def test_a_live_delivery_never_waits_for_a_replayed_one() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*live(1), *replayed(2)])
    pop(hand, 1, 10.0)
    pop(hand, 1, 10.0)
    hand.take(live(1, start=2))
    assert hand.wait_s(10.0) == 0
    assert seqs(pop(hand, 1, 10.0)) == [2]


def test_what_was_never_tried_goes_before_what_failed_but_for_a_share() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*tried(2), *live(9)])
    assert popped(hand) == [1, 2, 3, 5001, 4, 5, 6, 5002, 7, 8, 9]
    assert SHARE == 4


def test_what_failed_goes_alone_whether_it_is_live_or_replayed() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*tried(2), *(replace(each, replay=1) for each in tried(1, start=5003))])
    assert [seqs(pop(hand, 8, 0.0)) for _ in range(4)] == [[5001], [5002], [5003], []]


def test_nothing_that_failed_goes_where_there_is_no_room_for_it() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*tried(2), *live(1)])
    assert [seqs(hand.pop(Room(8, 0), 0.0)) for _ in range(2)] == [[1], []]
    assert (hand.has_tried, hand.has_untried) == (True, False)


def test_a_probe_is_what_was_never_tried_as_long_as_there_is_any() -> None:
    hand = PrefetchBuffer(4)
    hand.take([*tried(2), *live(6), *replayed(1)])
    room = Room(1, 1)
    found = [seqs(hand.probe(room, number * QUIET_S)) for number in range(9)]
    assert found == [[1], [2], [3], [4], [5], [6], [1001], [5001], [5002]]
    assert hand.probe(room, 0.0) == []
