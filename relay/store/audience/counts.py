"""Counts of the audience by group and step, before they are ranked and named."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from relay.core.event import LEAD, LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED
from relay.store.audience import StepCount

Steps = Mapping[str, tuple[int, int, int]]
"""By step: people, events, and events without an address."""


class Counts(msgspec.Struct, frozen=True):
    """The groups of a question; one without an event is not among them."""

    most: Mapping[Any, int]
    """People of each group, in the step with the most of them."""
    steps: Callable[[Any], Steps]
    """Return the counts of one group."""
    total: Steps
    """Counts over all groups, with each person once."""

    @classmethod
    def of(cls, groups: Mapping[Any, Steps], total: Steps) -> Self:
        """Take groups whose counts are all known."""
        most = {
            key: max((people for people, _, _ in steps.values()), default=0)
            for key, steps in groups.items()
        }
        return cls(most, groups.__getitem__, total)

    def ranked(self) -> list[Any]:
        """Return the groups with the most people first."""
        return sorted(self.most, key=lambda key: (-self.most[key], str(key)))


def listed(steps: Steps) -> list[StepCount]:
    """Return all steps in their order, also those without an event."""
    return [
        StepCount(
            LEAD_CAPTURED if step == LEAD else VIDEO_WATCHED,
            None if step == LEAD else step,
            *steps.get(step, (0, 0, 0)),
        )
        for step in (*MILESTONES, LEAD)
    ]
