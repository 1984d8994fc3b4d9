"""The queueing model agrees with textbook values, and with facts that need no model."""

import math

import pytest

from benchmarks import model
from benchmarks.model import Engine, Share, Surroundings

ENGINE = Engine(
    accept=Share(item=0.1, transaction=0.3),
    deliver=Share(item=0.2, transaction=0.2),
    commit=Share(item=0.01, transaction=1.0),
    database_accept=Share(item=0.1, transaction=0.1),
    database_deliver=Share(item=0.1, transaction=0.1),
    processors=1.0,
)
AROUND = Surroundings(sinks=1, per_event=1.0, answer_ms=10.0, slots=16, cores=4)


def estimate(per_s: float, relays: int = 1, *, shared: bool = True) -> model.Estimate:
    return model.estimate(ENGINE, per_s, relays, AROUND, shared=shared)


@pytest.mark.parametrize(
    ("slots", "offered", "waiting"),
    [(1, 0.5, 0.5), (2, 1.0, 1 / 3), (10, 7.0, 0.2217), (4, 4.0, 1.0)],
)
def test_the_share_that_waits_is_the_textbooks(slots: int, offered: float, waiting: float) -> None:
    assert model.erlang_c(slots, offered) == pytest.approx(waiting, rel=1e-3)


def test_a_transaction_holds_one_event_at_leisure_and_256_at_most() -> None:
    assert model.batch(ENGINE, 100, 0) == 1
    assert model.batch(ENGINE, 1_000_000, 0) == pytest.approx(256)


def test_transactions_grow_until_the_relay_keeps_up() -> None:
    items = model.batch(ENGINE, 5_000, 0)
    assert items > 5
    assert ENGINE.used(1, 5_000, 0) > 1
    assert ENGINE.used(items, 5_000, 0) < 1


def test_costs_are_split_from_a_small_and_a_large_transaction() -> None:
    split = Share.between((1, 0.4), (30, 0.11))
    assert split.per_item(1) == pytest.approx(0.4)
    assert split.per_item(30) == pytest.approx(0.11)


def test_a_measurement_that_contradicts_the_split_costs_nothing_less_than_zero() -> None:
    assert Share.between((1, 0.1), (30, 0.2)) == Share(item=0.2, transaction=0.0)


def test_a_shared_sink_is_dispatched_no_faster_by_more_relays() -> None:
    assert estimate(2_000, relays=1).sink == estimate(2_000, relays=10).sink
    deliveries = 2_000 * ENGINE.deliver.item / 1000
    assert estimate(2_000, relays=10).relay > deliveries


def test_relays_with_stores_of_their_own_share_the_load() -> None:
    one = estimate(500, relays=1, shared=False)
    ten = estimate(5_000, relays=10, shared=False)
    assert ten == one


def test_more_relays_on_one_database_share_fewer_transactions() -> None:
    assert estimate(2_000, relays=10).database > estimate(2_000, relays=1).database


def test_the_first_saturated_resource_is_named_with_its_throughput() -> None:
    found = estimate(4_000)
    assert found.busiest == "sink"
    assert found.sink == pytest.approx(2.5)
    assert found.carried == pytest.approx(0.4)
    assert math.isinf(found.slot_wait_ms)


def test_waits_grow_with_the_load() -> None:
    calm, busy = estimate(100), estimate(1_000)
    assert calm.answer_ms < busy.answer_ms
    assert calm.answer_p99_ms < busy.answer_p99_ms
    assert calm.slot_wait_ms < busy.slot_wait_ms


def test_the_table_has_a_row_for_each_engine_load_and_number_of_relays() -> None:
    table = model.rows(model.load(model.FILE), AROUND)
    assert len(table) == 1 + 2 * len(model.LOADS) * len(model.RELAYS)
    assert len({len(row) for row in table}) == 1
