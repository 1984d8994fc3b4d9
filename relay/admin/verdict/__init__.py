"""The verdict on a running relay: every problem, with the next command for each.

Commands, API and page show the same findings; docs/operating.md has a table of them.
"""

import shlex
from collections.abc import Iterator, Sequence

from relay.admin.facts import Facts
from relay.admin.verdict import sinks, sources, store
from relay.admin.verdict.finding import SEVERITIES, Finding
from relay.core.units import duration
from relay.store.ownership import Cluster

__all__ = ["Finding", "is_well", "problems"]

KEYS_NAMED_MAX = 3
"""Keys at fault that one finding names."""


def problems(facts: Facts) -> Sequence[Finding]:
    """Return all problems, the most severe first."""
    now_ms = facts.now_ms
    findings = [*store.findings(facts)]
    if facts.cluster is not None:
        findings += _of_cluster(facts.cluster)
    for source in facts.sources:
        findings += sources.findings(source, clock=store.clock(facts.store), now_ms=now_ms)
    for sink in facts.sinks:
        findings += sinks.findings(sink, now_ms=now_ms)
    findings += _open_until_acted_on(facts)
    findings += store.unreadable(facts.store, now_ms=now_ms)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether no finding needs an operator."""
    return all(finding.severity == "info" for finding in findings)


def _of_cluster(cluster: Cluster) -> Iterator[Finding]:
    for member in cluster.away:
        yield Finding(
            severity="ticket",
            what=f"member {member.name} is away",
            since_ms=member.beat_ms,
            why="its heartbeats have stopped and it did not leave; the others send for its sinks",
            next=f"relay status --url {shlex.quote(member.address)}",
            runbook="relaymemberaway",
        )
    if len(cluster.configs) > 1:
        yield Finding(
            severity="ticket",
            what="the members have different configs",
            why="; ".join(f"{digest}: {', '.join(of)}" for digest, of in cluster.configs.items()),
            next="relay reload",
            runbook="relayconfigsdiffer",
        )
    for sink in cluster.free:
        yield Finding(
            severity="page",
            what=f"sink {sink.name} has no owner",
            since_ms=sink.since_ms,
            why="no member has taken it over, so none sends its events",
            next="relay check-config --connect",
            runbook="relaysinkwithoutowner",
        )


def _open_until_acted_on(facts: Facts) -> Iterator[Finding]:
    """Yield the findings on refused configs and lost events, which stay until an operator acts."""
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
    more = len(faults) - KEYS_NAMED_MAX
    return ", ".join([*faults[:KEYS_NAMED_MAX], *([f"and {more} more"] if more > 0 else [])])
