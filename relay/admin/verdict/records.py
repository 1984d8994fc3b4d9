"""Refused configs and lost events, which stay problems until an operator acts (pure)."""

from collections.abc import Iterator, Sequence

from relay.admin.facts import Facts
from relay.admin.verdict.finding import Finding
from relay.core.units import span

NAMED_MAX = 3


def findings(facts: Facts) -> Iterator[Finding]:
    for reading in facts.refused_reloads:
        yield Finding(
            severity="ticket",
            what="the config was read again and refused; the one before is in use",
            since_ms=reading.at_ms,
            why=_listed(reading.faults) or "see the log",
            next="relay check-config",
        )
    if facts.unacknowledged:
        first, *others = facts.unacknowledged
        lost = span(facts.unacknowledged_loss_ms)
        yield Finding(
            severity="ticket",
            what="events were lost while the relay was away",
            since_ms=first.from_ms,
            why=f"those first sent within {lost}: fetch them from the sender",
            next="relay absences list" if others else f"relay absences acknowledge {first.id}",
        )


def _listed(faults: Sequence[str]) -> str:
    more = len(faults) - NAMED_MAX
    return ", ".join([*faults[:NAMED_MAX], *([f"and {more} more"] if more > 0 else [])])
