"""Events and batches that one sink may have in flight."""

from relay.delivery.circuit_breaker import UNSETTLED_MAX, UNSETTLED_PER_SLOT, ConcurrencyLimit


def start(slots: ConcurrencyLimit, events: int) -> None:
    assert slots.room(unsettled=0, alone=False) >= events
    slots.begin(events)


def room(slots: ConcurrencyLimit, *, unsettled: int = 0) -> int:
    return slots.room(unsettled=unsettled, alone=False)


def test_events_fill_the_slots() -> None:
    slots = ConcurrencyLimit(2, 1)
    start(slots, 1)
    start(slots, 1)
    assert not room(slots)
    slots.end(1)
    assert room(slots)
    assert slots.in_flight == 1


def test_there_is_room_for_a_whole_batch_or_for_nothing() -> None:
    slots = ConcurrencyLimit(8, 4)
    start(slots, 2)
    assert room(slots) == 4
    start(slots, 4)
    assert room(slots) == 0


def test_a_partial_batch_takes_the_room_of_a_full_one() -> None:
    slots = ConcurrencyLimit(8, 4)
    start(slots, 1)
    start(slots, 4)
    assert (room(slots), slots.in_flight) == (0, 5)
    slots.end(1)
    assert room(slots)


def test_slots_that_batches_do_not_divide_are_the_limit() -> None:
    slots = ConcurrencyLimit(5, 2)
    start(slots, 2)
    start(slots, 2)
    assert not room(slots)


def test_unsettled_outcomes_take_room() -> None:
    assert room(ConcurrencyLimit(2, 1), unsettled=2 * UNSETTLED_PER_SLOT - 1)
    assert not room(ConcurrencyLimit(2, 1), unsettled=2 * UNSETTLED_PER_SLOT)
    assert not room(ConcurrencyLimit(1000, 1), unsettled=UNSETTLED_MAX)


def test_alone_requires_nothing_in_flight_and_nothing_unsettled() -> None:
    slots = ConcurrencyLimit(8, 4)
    assert slots.room(unsettled=0, alone=True) == 1
    assert not slots.room(unsettled=1, alone=True)
    start(slots, 1)
    assert not slots.room(unsettled=0, alone=True)
