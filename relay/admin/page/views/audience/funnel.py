"""The steps of a funnel, compared with one another."""

from collections.abc import Sequence

import msgspec

from relay.store.audience import StepCount

NAMES = ("Started", "25 %", "50 %", "75 %", "Completed", "Leads")


class Step(msgspec.Struct, frozen=True):
    """One step of a funnel; shares are those of people, None without a whole."""

    name: str
    people: int
    events: int
    of_started: float | None
    of_before: float | None
    """None also for leads, which may come at any point of a video."""
    lost: int
    """People who reached the step before and not this one; negative if reports are missing."""
    width: float
    """Of its bar, at most 100."""


def steps_of(counts: Sequence[StepCount]) -> list[Step]:
    """Compare the steps with one another."""
    people = [count.people for count in counts]
    started, most = people[0], max(people, default=0)
    steps = []
    for index, (name, count) in enumerate(zip(NAMES, counts, strict=True)):
        is_lead = count.milestone is None
        before = people[index - 1] if index and not is_lead else 0
        steps.append(
            Step(
                name=name,
                people=count.people,
                events=count.events,
                of_started=count.people / started if started else None,
                of_before=count.people / before if before else None,
                lost=before - count.people if before else 0,
                width=100 * count.people / most if most else 0,
            )
        )
    return steps
