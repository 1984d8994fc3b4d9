"""The verdict on a running relay: every problem there is, and the next command for each (pure).

Commands, API and page show the same findings; docs/operating.md has a table of them.
"""

from collections.abc import Sequence

from relay.admin.facts import Facts
from relay.admin.verdict import records, sinks, sources, store
from relay.admin.verdict.finding import SEVERITIES, Finding

__all__ = ["Finding", "is_well", "problems"]


def problems(facts: Facts) -> Sequence[Finding]:
    """Return all problems, the worst first."""
    now_ms = facts.now_ms
    found = [*store.findings(facts)]
    for source in facts.sources:
        found += sources.findings(source, now_ms=now_ms)
    for sink in facts.sinks:
        found += sinks.findings(sink, now_ms=now_ms)
    found += records.findings(facts)
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def is_well(found: Sequence[Finding]) -> bool:
    """Whether nothing needs a person."""
    return all(each.severity == "info" for each in found)
