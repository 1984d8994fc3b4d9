"""How many events may be in flight at once."""

from relay.delivery.circuit_breaker import UNSETTLED_MAX, UNSETTLED_PER_SLOT, ConcurrencyLimit


def test_as_many_batches_start_as_the_slots_hold() -> None:
    limit = ConcurrencyLimit(slots=8, batch=4)
    for _ in range(2):
        assert limit.room(unsettled=0, alone=False) == 4
        limit.begin(4)
    assert limit.room(unsettled=0, alone=False) == 0
    limit.end(4)
    assert limit.room(unsettled=0, alone=False) == 4
    assert limit.in_flight == 4


def test_one_that_goes_alone_waits_for_all_others_and_their_outcomes() -> None:
    limit = ConcurrencyLimit(slots=8, batch=4)
    assert limit.room(unsettled=0, alone=True) == 1
    assert limit.room(unsettled=1, alone=True) == 0
    limit.begin(1)
    assert limit.room(unsettled=0, alone=True) == 0


def test_outcomes_that_wait_for_the_store_hold_sends_back() -> None:
    few, many = ConcurrencyLimit(slots=1, batch=1), ConcurrencyLimit(slots=1000, batch=1)
    for limit, most in ((few, UNSETTLED_PER_SLOT), (many, UNSETTLED_MAX)):
        assert limit.room(unsettled=most - 1, alone=False) == 1
        assert limit.room(unsettled=most, alone=False) == 0
