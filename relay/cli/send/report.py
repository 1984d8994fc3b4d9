"""Output of `relay send`: a line per attempt or a summary, as text or JSON."""

import asyncio
import json
import sys
from typing import Any

import click

from relay.cli.send.load import OutgoingEvent, Tally
from relay.core.delivery_rules import WAITS_S
from relay.video_service.sender import SendOutcome, Watch

PROGRESS_EVERY_S = 0.2
KIND_WIDTH = 14
ID_WIDTH = 20

_STATUS_TEXTS = {
    401: "the secrets differ, or the clocks do by more than the source's tolerance",
    404: "no source has this path; check the URL",
    405: "this URL accepts no POST; check that it is a source's",
    408: "the body did not arrive in time",
    413: "the body is larger than max_body",
    502: "the proxy cannot reach the relay",
    503: "the relay is stopping, or its store is full or too slow; try again later",
    504: "the relay did not respond to the proxy in time",
}
_CLASS_TEXTS = {
    3: "a redirect, which the video service does not follow",
    4: "refused, and not by a relay; check the URL",
    5: "a server error, and not of a relay; check the URL",
}


def describe_failure(attempted_status: int | None, reason: str) -> str:
    """Describe in one line why an attempt failed and what to check."""
    if attempted_status is not None:
        known = _STATUS_TEXTS.get(attempted_status) or _CLASS_TEXTS.get(attempted_status // 100, "")
        return f"{attempted_status}: {known}" if known else str(attempted_status)
    if reason == "connection refused":
        return f"{reason}: start the relay, or check the URL"
    return reason


class SendReport:
    """Prints each attempt, or progress and a summary for many events."""

    def __init__(self, tally: Tally, *, each_attempt: bool, as_json: bool) -> None:
        """`each_attempt` prints every attempt; else there is a progress line and a summary."""
        self._tally = tally
        self._each_attempt = each_attempt
        self._as_json = as_json
        self._events: list[dict[str, Any]] = []

    def watch(self, event: OutgoingEvent) -> Watch:
        """Create the observer of one event's attempts."""
        attempts = 0

        def watched(attempted: SendOutcome, next_s: float | None) -> None:
            nonlocal attempts
            attempts += 1
            if not self._each_attempt:
                return
            if self._as_json:
                if next_s is None:
                    self._events.append(_as_data(event, attempted, attempts))
                return
            click.echo(_line(event, attempted), err=not attempted.acknowledged)
            if next_s is not None:
                again = f"again in {next_s:g} s: attempt {attempts + 1} of {len(WAITS_S) + 1}"
                click.echo(f"{'':{KIND_WIDTH + ID_WIDTH + 4}}{again}", err=True)

        return watched

    async def show_progress(self) -> None:
        """Rewrite one line of a terminal until cancelled."""
        if self._each_attempt or self._as_json or not sys.stderr.isatty():
            return
        try:
            while True:
                click.echo(f"\r{_progress(self._tally)}\x1b[K", err=True, nl=False)
                await asyncio.sleep(PROGRESS_EVERY_S)
        finally:
            click.echo("\r\x1b[K", err=True, nl=False)

    def end(self) -> None:
        """Print the summary, if there is one."""
        if self._as_json:
            events = {"events": self._events} if self._each_attempt else {}
            click.echo(json.dumps(_sum(self._tally) | events))
        elif not self._each_attempt:
            click.echo(_summary(self._tally))


def _as_data(event: OutgoingEvent, attempted: SendOutcome, attempts: int) -> dict[str, Any]:
    return {
        "event": event.kind,
        "id": event.id,
        "acknowledged": attempted.acknowledged,
        "status": attempted.status,
        "outcome": attempted.outcome,
        "attempts": attempts,
        "ms": round(attempted.seconds * 1000, 3),
    }


def _line(event: OutgoingEvent, attempted: SendOutcome) -> str:
    if attempted.acknowledged:
        answer = f"{attempted.status} {attempted.outcome}".ljust(16)
        text = f"{answer} {attempted.seconds * 1000:8.1f} ms"
    else:
        text = describe_failure(attempted.status, attempted.reason)
    return f"{event.kind or 'a body':{KIND_WIDTH}}  {event.id:{ID_WIDTH}}  {text}"


def _progress(tally: Tally) -> str:
    waiting = f", {tally.waiting} waiting for a retry" if tally.waiting else ""
    return (
        f"{tally.finished} of {tally.count}: {tally.acknowledged} acknowledged, "
        f"{tally.failed} failed{waiting}"
    )


def _summary(tally: Tally) -> str:
    lines = [
        f"{tally.finished} of {tally.count} events in {tally.seconds:.2f} s, {tally.rate:.1f}/s",
        f"  accepted    {tally.acknowledged - tally.duplicates}",
        f"  duplicates  {tally.duplicates}",
        f"  failed      {tally.failed}",
    ]
    latencies = tally.latencies_ms()
    if latencies:
        values = "   ".join(f"{name} {value:.1f}" for name, value in latencies.items())
        lines.append(f"  answer, ms  {values}")
    lines += [
        f"  {count} x {describe_failure(status, reason)}"
        for (status, reason), count in tally.failures.most_common()
    ]
    return "\n".join(lines)


def _sum(tally: Tally) -> dict[str, Any]:
    return {
        "ok": tally.acknowledged == tally.count,
        "count": tally.count,
        "acknowledged": tally.acknowledged,
        "duplicates": tally.duplicates,
        "failed": tally.failed,
        "attempts": tally.attempts,
        "seconds": round(tally.seconds, 3),
        "rate": round(tally.rate, 1),
        "latency_ms": {name: round(value, 3) for name, value in tally.latencies_ms().items()},
        "failures": [
            {
                "status": status,
                "reason": reason,
                "attempts": count,
                "text": describe_failure(status, reason),
            }
            for (status, reason), count in tally.failures.most_common()
        ],
    }
