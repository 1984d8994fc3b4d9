"""Findings on requests that do not verify: secrets and clocks."""

import shlex
from collections.abc import Iterator

from relay.admin.facts import SourceFacts
from relay.admin.verdict.finding import Finding, ahead, is_over, requests
from relay.core.minutes import MINUTE_MS
from relay.core.units import duration, span

REFUSED_MS = 15 * MINUTE_MS
"""Age from which refused signatures are ignored; the sender's waits are shorter."""

UNTIMELY_MIN = 3
"""Fewer may be a late retry of one event, or a replayed request of a stranger."""

SKEW_S = 60
"""A fifth of the default tolerance."""

_SENDERS = "the sender's"


def findings(source: SourceFacts, *, clock: str, now_ms: int) -> Iterator[Finding]:
    """`clock` names the one that the relay goes by."""
    if source.removed_ms is not None:
        yield _removed(source.name, source.removed_ms)
    yield from _rotation(source, now_ms=now_ms)
    yield from _unreconciled(source)
    refusals = source.traffic.refusals
    is_recent = refusals.count > 0 and not is_over(refusals.last_ms, REFUSED_MS, now_ms=now_ms)
    yield from _clock(source, clock, is_untimely=is_recent and refusals.untimely > 0)
    if is_recent and refusals.count > refusals.untimely and not _is_kept(source, now_ms=now_ms):
        yield _mismatches(source)


def _removed(name: str, at_ms: int) -> Finding:
    return Finding(
        severity="ticket",
        what=f"nothing can arrive at source {name}: its webhook endpoint was removed",
        since_ms=at_ms,
        why="the video service sends it no events; register the endpoint again, or take the source "
        "out of the config",
        next=f"relay endpoint register --source {shlex.quote(name)} --url https://HOST/PATH "
        "--secret-file FILE",
        runbook="relaynoevents",
    )


def _is_kept(source: SourceFacts, *, now_ms: int) -> bool:
    """Whether requests that match no secret are a rotation's, whose finding says so."""
    waiting = source.rotation is not None and source.rotation.waiting > 0
    return waiting or _is_armed(source, now_ms=now_ms)


def _is_armed(source: SourceFacts, *, now_ms: int) -> bool:
    return source.rotation is not None and now_ms < source.rotation.until_ms


def _rotation(source: SourceFacts, *, now_ms: int) -> Iterator[Finding]:
    rotation, is_armed = source.rotation, _is_armed(source, now_ms=now_ms)
    if rotation is None:
        return
    finish = f"relay rotate finish --source {shlex.quote(source.name)}"
    name, dropped = source.name, f"{requests(source.dropped)} dropped at the quarantine's limit"
    if rotation.waiting:
        # A stranger's are kept too, and only the sender repeats a request after its known waits.
        is_senders = source.traffic.refusals.retried > 0
        origin = "retried as the sender does" if is_senders else "they may come from a stranger"
        why = f"they match no secret, and expire in {span(rotation.expires_ms - now_ms)}; {origin}"
        yield Finding(
            severity="page" if is_senders or source.dropped else "info",
            what=f"{requests(rotation.waiting)} of source {name} wait for its new secret",
            since_ms=rotation.begun_ms,
            why=f"{why}; {dropped}" if source.dropped else why,
            # They are verified again as soon as a reload brings the secret.
            next=finish if is_armed else "relay reload",
            runbook="relayrotationunfinished",
        )
    elif is_armed and source.dropped:
        yield Finding(
            severity="page",
            what=f"requests of source {name} are dropped: its quarantine is full",
            since_ms=rotation.begun_ms,
            why=f"{dropped}; only the sender's retries can still deliver their events",
            next=finish,
            runbook="relayquarantinedropping",
        )
    elif is_armed:
        yield Finding(
            severity="info",
            what=f"the secret of source {name} is being rotated",
            since_ms=rotation.begun_ms,
            why=f"unverified requests are kept for {span(rotation.until_ms - now_ms)} more",
            next=finish,
            runbook="relayrotationunfinished",
        )


def _unreconciled(source: SourceFacts) -> Iterator[Finding]:
    absences = source.unreconciled
    if not absences:
        return
    lost = duration(sum(each.lacks.to_ms - each.lacks.from_ms for each in absences if each.lacks))
    name = shlex.quote(source.name)
    if source.reconciles_by_itself:
        yield Finding(
            severity="info",
            what=f"an outage of source {source.name} is about to be reconciled",
            since_ms=absences[0].from_ms,
            why=f"the events of {lost} are asked for once the sender has given up its retries",
            next="relay reconciliations list",
            runbook="relayeventslost",
        )
    else:
        yield Finding(
            severity="ticket",
            what=f"an outage of source {source.name} has not been reconciled",
            since_ms=absences[0].from_ms,
            why=f"its API may give back the events of {lost}",
            next=f"relay reconcile --source {name}",
            runbook="relayeventslost",
        )


def _clock(source: SourceFacts, clock: str, *, is_untimely: bool) -> Iterator[Finding]:
    refusals, skew_s = source.traffic.refusals, source.traffic.skew_s
    state = "" if skew_s is None else f"{clock} is {ahead(skew_s, of=_SENDERS)}"
    if is_untimely:
        yield Finding(
            severity="page" if refusals.untimely >= UNTIMELY_MIN else "info",
            what=f"every request of source {source.name} is too old or in the future",
            since_ms=refusals.first_ms,
            why=f"{requests(refusals.untimely)} refused since the last verified one; "
            + _untimely(refusals.skew_s, clock),
            next="timedatectl status",
            runbook="relayclockskew",
        )
    elif skew_s is not None and abs(skew_s) > SKEW_S:
        yield Finding(
            severity="ticket",
            what=f"{state} (source {source.name})",
            why="an offset beyond the source's tolerance makes it refuse every event",
            next="timedatectl status",
            runbook="relayclockskew",
        )


def _untimely(skew_s: float, clock: str) -> str:
    """Say how far off a request was, and what that means."""
    age = duration(abs(skew_s) * 1000)
    if skew_s < 0:
        return f"the last was signed {age} in the future: {clock} or the sender's is wrong"
    return (
        f"the last was signed {age} before it came: {clock} or the sender's is wrong, or it was "
        "held up or repeated on its way"
    )


def _mismatches(source: SourceFacts) -> Finding:
    refusals = source.traffic.refusals
    why = f"{requests(refusals.count - refusals.untimely)} refused since the last verified one"
    if refusals.retried:
        return Finding(
            severity="page",
            what=f"no request of source {source.name} has a valid signature",
            since_ms=refusals.first_ms,
            why=f"{why}, retried as the sender does: its secret has changed",
            next=f"relay rotate begin --source {shlex.quote(source.name)}",
            runbook="relaysignaturefailures",
        )
    return Finding(
        severity="info",
        what=f"requests of source {source.name} have invalid signatures",
        since_ms=refusals.first_ms,
        why=f"{why}; they may come from a stranger",
        next="relay events tail",
        runbook="relaysignaturefailures",
    )
