"""Findings on refused configs and lost events, which stay until an operator acts."""

from collections.abc import Iterator, Sequence

from relay.admin.facts import Facts
from relay.admin.verdict.finding import Finding
from relay.core.units import duration

NAMED_MAX = 3


def findings(facts: Facts) -> Iterator[Finding]:
    for reading in facts.refused_reloads:
        yield Finding(
            severity="ticket",
            what="the last reload was refused; the previous config is in use",
            since_ms=reading.at_ms,
            why=_listed(reading.faults) or "see the log",
            next="relay check-config",
            runbook="relayconfigreloadfailed",
        )
    if facts.unacknowledged:
        first, *others = facts.unacknowledged
        lost = duration(facts.unacknowledged_loss_ms)
        yield Finding(
            severity="ticket",
            what="events were lost while the relay was away",
            since_ms=first.from_ms,
            why=f"the sender gave up on the events of {lost}; fetch them from it",
            next="relay absences list" if others else f"relay absences acknowledge {first.id}",
            runbook="relayeventslost",
        )


def _listed(faults: Sequence[str]) -> str:
    more = len(faults) - NAMED_MAX
    return ", ".join([*faults[:NAMED_MAX], *([f"and {more} more"] if more > 0 else [])])
