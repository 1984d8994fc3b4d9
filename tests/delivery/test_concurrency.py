"""How many events and batches one sink may have on its way."""

from relay.delivery.concurrency import UNSETTLED, UNSETTLED_MAX, ConcurrencyLimit


def start(slots: ConcurrencyLimit, events: int) -> None:
    assert slots.room(unsettled=0, alone=False) >= events
    slots.begin(events)


def room(slots: ConcurrencyLimit, *, unsettled: int = 0) -> int:
    return slots.room(unsettled=unsettled, alone=False)


def test_there_is_a_slot_for_so_many_events() -> None:
    slots = ConcurrencyLimit(2, 1)
    start(slots, 1)
    start(slots, 1)
    assert not room(slots)
    slots.end(1)
    assert room(slots)
    assert slots.sending == 1


def test_there_is_room_for_a_whole_batch_or_for_none() -> None:
    slots = ConcurrencyLimit(8, 4)
    start(slots, 2)
    assert room(slots) == 4
    start(slots, 4)
    assert room(slots) == 0


def test_a_batch_that_is_not_full_takes_the_place_of_a_full_one() -> None:
    slots = ConcurrencyLimit(8, 4)
    start(slots, 1)
    start(slots, 4)
    assert (room(slots), slots.sending) == (0, 5)
    slots.end(1)
    assert room(slots)


def test_where_batches_do_not_come_out_even_the_slots_are_the_limit() -> None:
    slots = ConcurrencyLimit(5, 2)
    start(slots, 2)
    start(slots, 2)
    assert not room(slots)


def test_what_waits_for_the_disk_takes_room() -> None:
    assert room(ConcurrencyLimit(2, 1), unsettled=2 * UNSETTLED - 1)
    assert not room(ConcurrencyLimit(2, 1), unsettled=2 * UNSETTLED)
    assert not room(ConcurrencyLimit(1000, 1), unsettled=UNSETTLED_MAX)


def test_alone_is_with_nothing_under_way_and_nothing_unsettled() -> None:
    slots = ConcurrencyLimit(8, 4)
    assert slots.room(unsettled=0, alone=True) == 1
    assert not slots.room(unsettled=1, alone=True)
    start(slots, 1)
    assert not slots.room(unsettled=0, alone=True)
