"""Filters of periods, tested together, against a set of ids for each period."""

from collections import defaultdict
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.store.sqlite import id_filter
from relay.store.sqlite.id_filter import IdFilters

IDS = 256
KEY = b"a key"


def places(number: int) -> tuple[int, ...]:
    return id_filter.places(KEY, "main", f"evt_{number}")


def column_of(periods: dict[int, set[int]]) -> bytes:
    column = bytearray(id_filter.column_bytes(IDS))
    for period, ids in periods.items():
        id_filter.add(column, period, map(places, ids))
    return bytes(column)


def bits_of(periods: dict[int, set[int]]) -> int:
    return sum(map(id_filter.bit_of, periods))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 80), st.sets(st.integers(0, 300), max_size=8)),
        st.tuples(st.just("forget"), st.integers(0, 10), st.just(set[int]())),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_period_is_named_for_each_of_its_ids(
    steps: list[tuple[str, int, set[int]]],
) -> None:
    filters = IdFilters.empty(IDS)
    model: defaultdict[int, dict[int, set[int]]] = defaultdict(dict)
    for step, number, ids in steps:
        if step == "forget":
            filters = filters.without([number])
            model.pop(number, None)
            continue
        block = id_filter.block_of(number)
        model[block].setdefault(number, ids)
        filters = filters.with_blocks([(block, bits_of(model[block]), column_of(model[block]))])
    periods = {period: ids for block in model.values() for period, ids in block.items()}
    assert filters.blocks == model.keys()
    assert sorted(filters.periods()) == sorted(periods)
    for number in range(0, 301, 7):
        holding = {period for period, ids in periods.items() if number in ids}
        named = filters.matching(places(number))
        assert holding <= set(named) <= periods.keys()
        assert len(named) == len(set(named))


def test_blocks_added_together_are_as_if_added_one_after_another() -> None:
    blocks = {block: {block << 3: {block}, (block << 3) + 5: {7}} for block in range(9)}
    columns = [(block, bits_of(ids), column_of(ids)) for block, ids in blocks.items()]
    together = IdFilters.empty(IDS).with_blocks(columns)
    single = IdFilters.empty(IDS)
    for each in columns:
        single = single.with_blocks([each])
    assert together.periods() == single.periods()
    for number in range(IDS):
        assert together.matching(places(number)) == single.matching(places(number))


def test_one_foreign_id_in_some_hundred_seems_to_be_in_a_full_period() -> None:
    column = column_of({3: set(range(IDS))})
    filters = IdFilters.empty(IDS).with_blocks([(0, id_filter.bit_of(3), column)])
    wrong = sum(bool(filters.matching(places(number))) for number in range(IDS, 50_000))
    assert wrong / 50_000 < 1 / 300


def test_ids_of_another_source_or_key_have_other_places() -> None:
    all_places = {
        id_filter.places(key, source, "evt_1") for key in (KEY, b"other") for source in "ab"
    }
    assert len(all_places) == 4


def test_a_filter_in_use_is_not_replaced_by_one_without_a_period() -> None:
    random = Random(1)
    both = {1: {random.randrange(99)}, 2: {random.randrange(99)}}
    filters = IdFilters.empty(IDS).with_blocks([(0, bits_of(both), column_of(both))])
    with pytest.raises(ValueError, match="block 0 lack a period"):
        filters.with_blocks([(0, id_filter.bit_of(2), column_of({2: both[2]}))])
