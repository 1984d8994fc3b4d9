"""Findings on the relays that share a store."""

import shlex
from collections.abc import Iterator

from relay.admin.verdict.finding import Finding
from relay.store.ownership import Cluster


def findings(cluster: Cluster) -> Iterator[Finding]:
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
            since_ms=None,
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
