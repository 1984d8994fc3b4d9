"""The simulation finds faults that are planted in the planner, the database and the receiver."""

from collections.abc import Mapping
from typing import Any

import pytest

from relay.core.cluster import ownership
from relay.core.cluster.planning import Planner
from relay.core.cluster.statements import Fence
from tests.core.cluster.acceptance import NEXT, Outcome, Step, Verdict
from tests.core.cluster.database import Database
from tests.core.cluster.server import Transaction
from tests.core.cluster.world import World
from tests.seeds import violation

SEEDS = 2_000
"""As many as the tests run without a fault."""


class DeadlineFromAnswer(Planner):
    """Counts a lease's deadline from the answer instead of from before the request."""

    def _controlled(self, statement: Any, answer: Any, *, sent_s: float, now_s: float) -> None:
        super()._controlled(statement, answer, sent_s=now_s, now_s=now_s)


class DeadlineByTimer(Planner):
    """Relies on a timer to end a lease, and reads no clock before a send."""

    def may_send(self, sink: str, fence: Fence, now_s: float) -> bool:
        return self.leases.may_send(sink, fence, 0.0)


class ReleaseInFlight(Planner):
    """Releases a sink while its sends are in flight."""

    def plan(self, now_s: float) -> Any:
        for lease in self.leases:
            lease.drained |= lease.state == "draining"
        return super().plan(now_s)


class FenceOnlyRead(Database):
    """Reads the fence of a settlement, and lets the ownership row change before its commit."""

    def lock_fence(self, sink: str, transaction: Transaction) -> None:
        pass


class PlannedByAnswers(World):
    planner_class = DeadlineFromAnswer


class PlannedByTimers(World):
    planner_class = DeadlineByTimer


class ReleasedInFlight(World):
    planner_class = ReleaseInFlight


class SettledWithoutLock(World):
    database_class = FenceOnlyRead


class AcknowledgedAfterLookUp(World):
    acceptance: Mapping[tuple[Step, Outcome], Step | Verdict] = {
        **NEXT,
        ("insert", "known"): "duplicate",
    }


def first_violation(world_class: type[World]) -> str:
    return next(filter(None, (violation(seed, world_class) for seed in range(SEEDS))), "")


@pytest.mark.parametrize(
    ("world_class", "text"),
    [
        (PlannedByAnswers, "still trusts"),
        (PlannedByTimers, "still trusts"),
        (ReleasedInFlight, "a send of the previous owner goes on"),
        (SettledWithoutLock, " settles for "),
        (AcknowledgedAfterLookUp, "was acknowledged and lost"),
    ],
)
def test_a_planted_fault_is_found(world_class: type[World], text: str) -> None:
    assert text in first_violation(world_class)


def test_trust_in_the_clock_of_the_database_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "WITNESS_S", 0.0)
    assert "still trusts" in first_violation(World)
