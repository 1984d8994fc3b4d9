"""Findings on sinks that do not get their events."""

import shlex
from collections.abc import Iterator

from relay.admin.facts import SinkFacts
from relay.admin.verdict.finding import Finding, Severity, is_over
from relay.core.minutes import DAY_MS, MINUTE_MS
from relay.core.sink_status import Flow, SinkStatus, about, rates, stands_still
from relay.core.units import number, span

THROTTLED_MS = 15 * MINUTE_MS
"""A destination's restart or update takes less."""

BEHIND_MS = 30 * MINUTE_MS
PAUSED_MS = 2 * DAY_MS


def findings(sink: SinkFacts, *, now_ms: int) -> Iterator[Finding]:
    if sink.condition is None:
        yield from _gone(sink, now_ms=now_ms)
    elif sink.condition.state == "standby":
        pass  # The cluster's findings have it, if it lasts.
    elif stands_still(sink.condition.stands_still_since_ms, now_ms=now_ms):
        yield _still(sink, sink.condition, now_ms=now_ms)
    elif sink.condition.state == "active":
        yield from _slow(sink, sink.condition, now_ms=now_ms)
    else:
        yield _not_active(sink, sink.condition, now_ms=now_ms)
    yield from _dead_letters(sink)


def _still(sink: SinkFacts, status: SinkStatus, *, now_ms: int) -> Finding:
    return Finding(
        severity="page",
        what=f"sink {sink.name} stands still",
        since_ms=status.stands_still_since_ms,
        why=f"{_backlog(sink, now_ms=now_ms)}; deliveries are due, none begins, and nothing says "
        "why; its dispatcher was built anew, once",
        next=f"relay sinks retry {shlex.quote(sink.name)}",
        runbook="relaysinkstandsstill",
    )


def _gone(sink: SinkFacts, *, now_ms: int) -> Iterator[Finding]:
    if sink.pending:
        yield Finding(
            severity="ticket",
            what=f"events wait for sink {sink.name}, which is not in the config",
            since_ms=sink.oldest_pending_ms,
            why=f"{_backlog(sink, now_ms=now_ms)}; add the sink to the config to deliver them",
            next="relay reload",
            runbook="relaybacklogold",
        )


def _not_active(sink: SinkFacts, status: SinkStatus, *, now_ms: int) -> Finding:
    name, why = shlex.quote(sink.name), _backlog(sink, now_ms=now_ms)
    if status.state == "paused":
        is_forgotten = bool(sink.pending) and is_over(status.since_ms, PAUSED_MS, now_ms=now_ms)
        severity: Severity = "ticket" if is_forgotten else "info"
        command = f"relay sinks resume {name}"
    else:
        is_long = is_over(status.since_ms, THROTTLED_MS, now_ms=now_ms)
        is_behind = is_over(sink.oldest_pending_ms, BEHIND_MS, now_ms=now_ms)
        needs_person = status.state == "parked" or is_long or is_behind
        severity = "ticket" if needs_person else "info"
        command = f"relay sinks test {name}"
        why = "; ".join(filter(None, (status.last_error, why, _died_before(sink, status))))
    return Finding(
        severity=severity,
        what=f"sink {sink.name} is {status.state}",
        since_ms=status.since_ms,
        why=why,
        next=command,
        runbook="relaysinkpaused" if status.state == "paused" else "relaysinkparked",
    )


def _died_before(sink: SinkFacts, status: SinkStatus) -> str:
    """Name the command for the events that died before the destination was blamed."""
    if status.refusals is None or not sink.dead:
        return ""
    reason = status.refusals.reason
    chosen = "" if reason is None else f" --reason {shlex.quote(reason)}"
    command = f"relay dead-letters replay --sink {shlex.quote(sink.name)}{chosen}"
    return f"once it takes events again, deliver what died before: {command}"


def _slow(sink: SinkFacts, status: SinkStatus, *, now_ms: int) -> Iterator[Finding]:
    """Report an active sink that is still behind, or falls behind."""
    why = "; ".join(filter(None, (status.last_error, _backlog(sink, now_ms=now_ms))))
    if status.flow is not None and status.flow.falls_behind:
        yield _falling_behind(sink, status.flow, why)
    elif is_over(sink.oldest_pending_ms, BEHIND_MS, now_ms=now_ms):
        yield Finding(
            severity="ticket",
            what=f"sink {sink.name} is behind",
            since_ms=sink.oldest_pending_ms,
            why=why,
            next=f"relay events list --sink {shlex.quote(sink.name)} --outcome pending",
            runbook="relaybacklogold",
        )
    last_ms = status.last_delivered_ms
    is_idle = last_ms is None or is_over(last_ms, THROTTLED_MS, now_ms=now_ms)
    # A replay may take long while it makes progress.
    if is_idle and is_over(sink.replaying_since_ms, BEHIND_MS, now_ms=now_ms):
        yield Finding(
            severity="ticket",
            what=f"a replay to sink {sink.name} makes no progress",
            since_ms=sink.replaying_since_ms,
            why=why,
            next="relay replays list",
            runbook="relaybacklogold",
        )


def _falling_behind(sink: SinkFacts, flow: Flow, why: str) -> Finding:
    wait = "" if flow.wait_s is None else about(flow.wait_s)
    if flow.growing_since_ms is not None:
        what = f"sink {sink.name} falls behind: {rates(flow)}"
        if wait:
            why = f"{why}; if nothing more came, it would take {wait}"
    else:
        what = f"sink {sink.name} needs {wait} for what waits, longer than its give_up_after"
        why = f"{why}; {rates(flow)}"
    return Finding(
        severity="ticket",
        what=what,
        since_ms=flow.growing_since_ms or flow.too_long_since_ms,
        why=f"{why}; raise its rate or concurrency, or make its destination faster",
        next=f"relay events list --sink {shlex.quote(sink.name)} --outcome pending",
        runbook="relaysinkfallsbehind",
    )


def _dead_letters(sink: SinkFacts) -> Iterator[Finding]:
    if sink.dead:
        letters = "dead letters" if sink.dead > 1 else "dead letter"
        yield Finding(
            severity="ticket",
            what=f"sink {sink.name} has {number(sink.dead)} {letters}",
            since_ms=sink.dead_since_ms,
            why=sink.dead_reason or "reason unknown",
            next=f"relay dead-letters list --sink {shlex.quote(sink.name)}",
            runbook="relaydeadletters",
        )


def _backlog(sink: SinkFacts, *, now_ms: int) -> str:
    if sink.pending is None:
        return "backlog unknown"
    oldest_ms = sink.oldest_pending_ms
    age = "" if oldest_ms is None else f", the oldest for {span(now_ms - oldest_ms)}"
    return f"{number(sink.pending)} pending{age}"
