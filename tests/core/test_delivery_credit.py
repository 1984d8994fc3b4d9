"""Deliveries under backpressure: earned by acknowledgements, shared by the sinks that wait."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.acceptance import Backpressure
from relay.core.delivery_credit import (
    ACKNOWLEDGEMENTS_PER_DELIVERY,
    SAVED_MAX,
    SHARED_AT,
    CreditAccount,
    DeliveryCredit,
)


class Sink:
    """A sink that counts its wakeups and starts."""

    def __init__(self, credit: DeliveryCredit) -> None:
        self._credit = credit
        self.account = CreditAccount(self._notified)
        self.wakeups = 0
        self.started = 0

    def _notified(self) -> None:
        self.wakeups += 1

    def ask(self) -> None:
        self._credit.request(self.account)

    def start(self, most: int = SAVED_MAX) -> None:
        deliveries = min(self.account.balance, most)
        self.account.spend(deliveries)
        self.started += deliveries


@pytest.fixture
def credit() -> DeliveryCredit:
    return DeliveryCredit()


def earn(credit: DeliveryCredit, deliveries: int) -> None:
    for _ in range(deliveries * ACKNOWLEDGEMENTS_PER_DELIVERY):
        credit.earn()


def run(credit: DeliveryCredit, sinks: list[Sink], *, rounds: int) -> None:
    """Have the sinks ask, earn enough for a sharing, and have them start what they got."""
    for _ in range(rounds):
        for sink in sinks:
            sink.ask()
        earn(credit, SHARED_AT)
        for sink in sinks:
            sink.start()


def test_a_sink_that_waits_gets_what_is_earned(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    sink.ask()
    earn(credit, SHARED_AT)
    assert sink.account.balance == SHARED_AT


def test_a_sink_is_woken_once_enough_is_saved_up(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    sink.ask()
    earn(credit, SHARED_AT - 1)
    assert (sink.wakeups, sink.account.balance) == (0, 0)
    earn(credit, 1)
    assert sink.wakeups == 1


def test_a_share_of_a_delivery_starts_none(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    sink.ask()
    for _ in range(SHARED_AT * ACKNOWLEDGEMENTS_PER_DELIVERY - 1):
        credit.earn()
    assert sink.account.balance == 0
    credit.earn()
    assert sink.account.balance == SHARED_AT


def test_an_idle_sink_gets_no_credit(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    earn(credit, 3 * SHARED_AT)
    assert (sink.wakeups, sink.account.balance) == (0, 0)


def test_saved_credit_is_shared_with_the_next_delivery(credit: DeliveryCredit) -> None:
    earn(credit, 2 * SHARED_AT - 1)
    sinks = [Sink(credit), Sink(credit)]
    for sink in sinks:
        sink.ask()
    earn(credit, 1)
    assert [sink.account.balance for sink in sinks] == [SHARED_AT, SHARED_AT]


def test_saved_credit_is_bounded(credit: DeliveryCredit) -> None:
    earn(credit, 10 * SAVED_MAX)
    sink = Sink(credit)
    sink.ask()
    earn(credit, 1)
    assert sink.account.balance == SAVED_MAX


def test_a_sink_that_asks_twice_gets_one_share(credit: DeliveryCredit) -> None:
    eager, other = Sink(credit), Sink(credit)
    eager.ask()
    other.ask()
    eager.ask()
    earn(credit, SHARED_AT)
    assert eager.account.balance == other.account.balance == SHARED_AT // 2
    assert eager.wakeups == 1


def test_each_share_needs_its_own_request(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    sink.ask()
    earn(credit, SHARED_AT)
    sink.start()
    earn(credit, SHARED_AT)
    assert (sink.wakeups, sink.account.balance) == (1, 0)


def test_an_indivisible_rest_is_kept_for_the_next_sharing(credit: DeliveryCredit) -> None:
    sinks = [Sink(credit) for _ in range(3)]
    for sink in sinks:
        sink.ask()
    earn(credit, SHARED_AT)
    share, rest = divmod(SHARED_AT, 3)
    assert rest
    assert [sink.account.balance for sink in sinks] == [share] * 3
    for sink in sinks:
        sink.start()
        sink.ask()
    earn(credit, SHARED_AT - rest)
    assert [sink.account.balance for sink in sinks] == [share] * 3


def test_the_sinks_that_got_nothing_are_next(credit: DeliveryCredit) -> None:
    sinks = [Sink(credit) for _ in range(SHARED_AT + 2)]
    for sink in sinks:
        sink.ask()
    earn(credit, SHARED_AT)
    assert [sink.account.balance for sink in sinks] == [1] * SHARED_AT + [0, 0]
    for sink in sinks[:SHARED_AT]:
        sink.start()
        sink.ask()
    earn(credit, SHARED_AT)
    assert [sink.account.balance for sink in sinks] == [1] * (SHARED_AT - 2) + [0, 0, 1, 1]


def test_credit_that_a_sink_cannot_use_is_shared_again(credit: DeliveryCredit) -> None:
    stopped, other = Sink(credit), Sink(credit)
    stopped.ask()
    other.ask()
    earn(credit, SHARED_AT)
    other.start()
    other.ask()
    earn(credit, SHARED_AT)
    assert stopped.account.balance == 0
    assert other.account.balance == SHARED_AT + SHARED_AT // 2


def test_returned_credit_is_bounded_too(credit: DeliveryCredit) -> None:
    earn(credit, SAVED_MAX)
    stopped, other = Sink(credit), Sink(credit)
    stopped.ask()
    earn(credit, SAVED_MAX)
    other.ask()
    earn(credit, 1)
    assert (stopped.account.balance, other.account.balance) == (0, SAVED_MAX)


def test_a_start_that_needed_no_credit_leaves_no_debt() -> None:
    account = CreditAccount(lambda: None, balance=2)
    account.spend(5)
    assert account.balance == 0


@pytest.mark.parametrize("sinks", [1, 2, 3, 8, 10, 100])
def test_more_sinks_share_the_same_credit(credit: DeliveryCredit, sinks: int) -> None:
    members = [Sink(credit) for _ in range(sinks)]
    run(credit, members, rounds=300)
    started = [member.started for member in members]
    assert 298 * SHARED_AT < sum(started) <= 300 * SHARED_AT
    assert max(started) - min(started) <= 1


@given(st.integers(1, 9), st.integers(1, 9))
def test_sinks_that_stop_take_nothing_from_the_others(stopped: int, others: int) -> None:
    credit = DeliveryCredit()
    for member in [Sink(credit) for _ in range(stopped)]:
        member.ask()
    members = [Sink(credit) for _ in range(others)]
    run(credit, members, rounds=100)
    # The share of those that stopped comes back with the second sharing.
    assert sum(member.started for member in members) > 98 * SHARED_AT


Step = Callable[[DeliveryCredit, Sink], None]
STEPS: list[Step] = [
    lambda credit, _: credit.earn(),
    lambda credit, _: earn(credit, 3),
    lambda _, sink: sink.ask(),
    lambda _, sink: sink.start(),
    lambda _, sink: sink.start(1),
    lambda credit, sink: credit.remind(sink.account),
]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=200))
def test_no_more_is_started_than_was_earned(steps: list[tuple[Step, int]]) -> None:
    credit = DeliveryCredit()
    acknowledgements = 0
    sinks = [Sink(credit) for _ in range(4)]
    for step, number in steps:
        acknowledgements += {STEPS[0]: 1, STEPS[1]: 3 * ACKNOWLEDGEMENTS_PER_DELIVERY}.get(step, 0)
        step(credit, sinks[number])
        held = sum(sink.account.balance for sink in sinks)
        started = sum(sink.started for sink in sinks)
        assert started + held <= acknowledgements // ACKNOWLEDGEMENTS_PER_DELIVERY
        assert held <= SAVED_MAX
        assert all(sink.account.balance >= 0 for sink in sinks)


def test_a_reminder_shares_what_is_saved(credit: DeliveryCredit) -> None:
    sinks = [Sink(credit), Sink(credit)]
    for sink in sinks:
        sink.ask()
    earn(credit, 4)
    credit.remind(sinks[1].account)
    assert [sink.account.balance for sink in sinks] == [2, 2]


def test_a_reminder_shares_nothing_with_an_idle_sink(credit: DeliveryCredit) -> None:
    waiting, other = Sink(credit), Sink(credit)
    waiting.ask()
    earn(credit, 4)
    credit.remind(other.account)
    assert waiting.account.balance == other.account.balance == 0


def test_a_reminder_before_anything_is_earned_shares_nothing(credit: DeliveryCredit) -> None:
    sink = Sink(credit)
    sink.ask()
    credit.remind(sink.account)
    assert (sink.wakeups, sink.account.balance) == (0, 0)


def test_credit_has_stalled_while_nothing_is_acknowledged(credit: DeliveryCredit) -> None:
    account = CreditAccount(lambda: None)
    assert credit.has_stalled(account)
    credit.earn()
    assert not credit.has_stalled(account)
    credit.remind(account)
    assert not credit.has_stalled(account)
    credit.remind(account)
    assert credit.has_stalled(account)
    credit.earn()
    assert not credit.has_stalled(account)


def test_a_request_that_is_stored_earns_credit() -> None:
    backpressure = Backpressure()
    sink = Sink(backpressure.credit)
    sink.ask()
    for _ in range(SHARED_AT * ACKNOWLEDGEMENTS_PER_DELIVERY):
        with backpressure.waiting():
            assert not backpressure.is_high()
    assert sink.account.balance == SHARED_AT


def test_a_request_that_is_not_stored_earns_nothing() -> None:
    backpressure = Backpressure()
    sink = Sink(backpressure.credit)
    sink.ask()
    for _ in range(SHARED_AT * ACKNOWLEDGEMENTS_PER_DELIVERY):
        with pytest.raises(OSError, match="disk"), backpressure.waiting():
            raise OSError("disk")
    assert sink.account.balance == 0


def test_waived_credit_wakes_each_sink_that_waits_once(credit: DeliveryCredit) -> None:
    sinks = [Sink(credit) for _ in range(3)]
    for sink in sinks[:2]:
        sink.ask()
    credit.waive()
    credit.waive()
    assert [sink.wakeups for sink in sinks] == [1, 1, 0]
