"""A delivery moves from pending to one of two ends; only a replay takes it back."""

from typing import get_args

import pytest

from relay.core.delivery import MOVES, STATUS_AFTER, Result, Status


def test_every_status_has_its_moves_and_every_result_its_status() -> None:
    assert set(MOVES) == set(Status)
    assert set(STATUS_AFTER) == set(get_args(Result))


@pytest.mark.parametrize("status", Status)
def test_every_delivery_can_be_replayed(status: Status) -> None:
    assert Status.PENDING in MOVES[status]


def test_a_delivered_event_cannot_be_discarded() -> None:
    discarded = {status for status in Status if Status.DISCARDED in MOVES[status]}
    assert discarded == {Status.DEAD, Status.PENDING}


@pytest.mark.parametrize("result", get_args(Result))
def test_a_pending_delivery_may_move_to_the_status_of_every_result(result: Result) -> None:
    assert STATUS_AFTER[result] in MOVES[Status.PENDING]


def test_attempts_lead_to_every_status_but_discarded() -> None:
    statuses = {STATUS_AFTER[result] for result in get_args(Result)}
    assert statuses == set(Status) - {Status.DISCARDED}


@pytest.mark.parametrize(
    ("result", "status"),
    [("delivered", "delivered"), ("retry", "pending"), ("parked", "pending"), ("dead", "dead")],
)
def test_a_status_is_stored_by_its_name(result: Result, status: str) -> None:
    assert STATUS_AFTER[result] == status
