"""The verdict on a running relay: every problem, with the next command for each.

Commands, API and page show the same findings; docs/operating.md has a table of them.
"""

from collections.abc import Sequence

from relay.admin.facts import Facts
from relay.admin.verdict import cluster, records, sinks, sources, store
from relay.admin.verdict.finding import SEVERITIES, Finding

__all__ = ["Finding", "is_well", "problems"]


def problems(facts: Facts) -> Sequence[Finding]:
    """Return all problems, the most severe first."""
    now_ms = facts.now_ms
    findings = [*store.findings(facts)]
    if facts.cluster is not None:
        findings += cluster.findings(facts.cluster)
    for source in facts.sources:
        findings += sources.findings(source, clock=store.clock(facts.store), now_ms=now_ms)
    for sink in facts.sinks:
        findings += sinks.findings(sink, now_ms=now_ms)
    findings += records.findings(facts)
    findings += store.unreadable(facts.store, now_ms=now_ms)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether no finding needs an operator."""
    return all(finding.severity == "info" for finding in findings)
