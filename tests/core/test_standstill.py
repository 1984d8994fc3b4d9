"""Standstill: due deliveries, none begun, and no reason."""

import math

import pytest

from relay.core.sink_status import WaitReason
from relay.core.standstill import BRIEF_S, GAP_S, REBUILD_S, Standstill


def look(
    standstill: Standstill,
    now_s: float,
    *,
    due_s: float | None = 0.0,
    last_start_s: float = -math.inf,
    reason: WaitReason | None = None,
) -> float:
    """Look at a time, and every five seconds before it, as the monitor does."""
    at_s = standstill.looked_s
    while at_s < now_s:
        at_s = min(at_s + 5.0, now_s)
        started_s = last_start_s if last_start_s <= at_s else -math.inf
        standstill.observe(due_s=due_s, last_start_s=started_s, reason=reason, now_s=at_s)
    return standstill.seconds


def test_time_in_which_nobody_looked_does_not_count() -> None:
    standstill = Standstill(0.0)
    standstill.observe(due_s=0.0, last_start_s=-math.inf, reason=None, now_s=600.0)
    assert standstill.seconds == GAP_S
    look(standstill, 620.0)
    standstill.observe(due_s=0.0, last_start_s=-math.inf, reason=None, now_s=900.0)
    assert standstill.seconds == 20 + 2 * GAP_S
    # The start was in the gap.
    standstill.observe(due_s=0.0, last_start_s=950.0, reason=None, now_s=1100.0)
    assert standstill.seconds == GAP_S


def test_it_grows_while_deliveries_are_due_and_none_begins() -> None:
    standstill = Standstill(0.0)
    assert [look(standstill, at_s, due_s=2.0) for at_s in (5.0, 10.0, 62.0)] == [3.0, 8.0, 60.0]


@pytest.mark.parametrize("reason", ["rate", "order", "pause", "breaker", "digest", "sends"])
def test_a_lasting_reason_explains_it_for_as_long_as_it_lasts(reason: WaitReason) -> None:
    standstill = Standstill(0.0)
    assert look(standstill, 3600.0, reason=reason) == 0
    assert look(standstill, 3605.0) == 5.0


@pytest.mark.parametrize("reason", ["fetch", "credit", "owner"])
def test_a_brief_reason_explains_ten_seconds(reason: WaitReason) -> None:
    standstill = Standstill(0.0)
    assert look(standstill, BRIEF_S, reason=reason) == 0
    assert look(standstill, BRIEF_S + 50, reason=reason) == 50


def test_reasons_that_take_turns_explain_no_longer_than_one() -> None:
    standstill = Standstill(0.0)
    for at_s in range(5, 75, 10):
        look(standstill, at_s, reason="fetch")
        look(standstill, at_s + 5, reason="credit")
    assert standstill.seconds == 70 - BRIEF_S


def test_a_start_ends_it() -> None:
    standstill = Standstill(0.0)
    look(standstill, 61.0)
    standstill.is_rebuilt = True
    assert look(standstill, 66.0, last_start_s=65.0) == 1.0
    assert not standstill.is_rebuilt


def test_nothing_due_ends_it() -> None:
    standstill = Standstill(0.0)
    look(standstill, 61.0)
    assert look(standstill, 66.0, due_s=None) == 0


def test_time_that_was_explained_before_does_not_count() -> None:
    standstill = Standstill(0.0)
    look(standstill, 100.0, reason="rate")
    assert look(standstill, 105.0, due_s=0.0) == 5.0


def test_the_dispatcher_is_rebuilt_once_per_standstill() -> None:
    standstill = Standstill(0.0)
    look(standstill, REBUILD_S - 1)
    assert not standstill.needs_rebuild()
    look(standstill, REBUILD_S)
    assert standstill.needs_rebuild()
    standstill.is_rebuilt = True
    look(standstill, 10 * REBUILD_S)
    assert not standstill.needs_rebuild()
    look(standstill, 10 * REBUILD_S + 5, last_start_s=10 * REBUILD_S + 1)
    look(standstill, 12 * REBUILD_S)
    assert standstill.needs_rebuild()
