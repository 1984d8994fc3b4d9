from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from relay.core.event import MILESTONES
from relay.sandbox import coverage
from relay.sandbox.model import Part

STEPS = 40
"""Parts begin and end at one of this many places, so that they often meet."""


def as_part(bounds: tuple[int, int]) -> Part:
    return min(bounds) / STEPS, max(bounds) / STEPS


parts = st.lists(st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(as_part), max_size=12)


def cells(some: list[Part]) -> set[int]:
    return {cell for start, end in some for cell in range(round(start * STEPS), round(end * STEPS))}


@given(parts)
def test_a_union_covers_the_cells_of_its_parts_each_once(some: list[Part]) -> None:
    joined = coverage.union(some)
    assert cells(joined) == cells(some)
    assert all(left[1] < right[0] for left, right in pairwise(joined))
    assert coverage.union(joined) == joined


@given(parts, st.randoms(use_true_random=False))
def test_a_union_does_not_depend_on_the_order_of_parts(some: list[Part], random: Random) -> None:
    shuffled = some.copy()
    random.shuffle(shuffled)
    assert coverage.union(shuffled) == coverage.union(some)


@given(parts)
def test_the_percentage_is_that_of_the_covered_cells(some: list[Part]) -> None:
    percentage = coverage.percent(coverage.union(some))
    assert percentage == len(cells(some)) * 1000 // STEPS / 10


@given(parts, parts)
def test_more_parts_never_take_a_milestone_back(some: list[Part], more: list[Part]) -> None:
    before = coverage.passed(coverage.percent(coverage.union(some)))
    after = coverage.passed(coverage.percent(coverage.union(some + more)))
    assert after[: len(before)] == before
    assert after == MILESTONES[: len(after)]


@given(parts, st.tuples(st.integers(0, STEPS), st.integers(0, STEPS)).map(as_part))
def test_the_next_passing_is_the_first_position_with_a_further_milestone(
    some: list[Part], playing: Part
) -> None:
    seen = coverage.union(some)
    position = coverage.next_passing(seen, playing)
    before = coverage.passed(coverage.percent(seen))

    def passed_at(end: float) -> tuple[str, ...]:
        return coverage.passed(coverage.percent(coverage.union([*seen, (playing[0], end)])))

    if position is None:
        assert passed_at(playing[1] - 0.002) == before or playing[1] - 0.002 < playing[0]
        return
    assert playing[0] < position <= playing[1]
    assert passed_at(position) == MILESTONES[: len(before) + 1]
    assert passed_at(max(playing[0], position - 0.002)) == before


def test_nine_tenths_finish_a_video_and_less_does_not() -> None:
    assert coverage.passed(coverage.percent([(0.0, 0.9)])) == MILESTONES
    assert coverage.passed(coverage.percent([(0.0, 0.8999)])) == MILESTONES[:-1]


def test_a_sum_of_fractions_is_not_short_by_its_rounding() -> None:
    tenths = [(0.0, 0.1), (0.2, 0.3), (0.4, 0.45)]
    assert coverage.percent(tenths) == 25.0
