"""Output of `relay send`: a line per attempt or a summary, as text or JSON."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from relay.core.delivery_rules import WAITS_S
from relay.video_service.sender import SendOutcome, Watch

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


class SentEvent(NamedTuple):
    """A body to send, with its kind and id; these are empty for one from a file."""

    kind: str
    id: str
    body: bytes


class SendReport:
    """Counts the results, and prints each attempt, or a summary of many events."""

    def __init__(self, total: int, *, each_attempt: bool, as_json: bool) -> None:
        self._total = total
        self._each_attempt = each_attempt
        self._as_json = as_json
        self.progress = click.progressbar(
            length=total,
            label="sent",
            show_pos=True,
            file=sys.stderr,
            hidden=each_attempt or as_json or not sys.stderr.isatty(),
        )
        """Shown at a terminal while it is entered."""
        self._started_s = time.monotonic()
        self._events: list[dict[str, Any]] = []
        self._failures = Counter[tuple[int | None, str]]()
        """Failed attempts by status and reason."""
        self._attempts = self._failed = self._duplicates = 0
        self.acknowledged = 0

    def watch(self, event: SentEvent) -> Watch:
        """Create the observer of one event's attempts."""
        attempts = 0

        def watched(attempted: SendOutcome, next_s: float | None) -> None:
            nonlocal attempts
            attempts += 1
            self._count(attempted, is_last=next_s is None)
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

    def end(self) -> None:
        """Print the summary, if there is one."""
        if self._as_json:
            events = {"events": self._events} if self._each_attempt else {}
            click.echo(json.dumps(self._sum() | events))
        elif not self._each_attempt:
            for line in self._summary():
                click.echo(line)

    def _count(self, attempted: SendOutcome, *, is_last: bool) -> None:
        self._attempts += 1
        if not attempted.acknowledged:
            self._failures[attempted.status, attempted.reason] += 1
        if is_last:
            self.acknowledged += attempted.acknowledged
            self._duplicates += attempted.acknowledged and attempted.outcome == "duplicate"
            self._failed += not attempted.acknowledged
            self.progress.update(1)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started_s

    def _summary(self) -> Iterator[str]:
        finished = self.acknowledged + self._failed
        yield f"{finished} of {self._total} events in {self._seconds:.2f} s"
        yield f"  accepted    {self.acknowledged - self._duplicates}"
        yield f"  duplicates  {self._duplicates}"
        yield f"  failed      {self._failed}"
        for (status, reason), count in self._failures.most_common():
            yield f"  {count} x {describe_failure(status, reason)}"

    def _sum(self) -> dict[str, Any]:
        return {
            "ok": self.acknowledged == self._total,
            "count": self._total,
            "acknowledged": self.acknowledged,
            "duplicates": self._duplicates,
            "failed": self._failed,
            "attempts": self._attempts,
            "seconds": round(self._seconds, 3),
            "failures": [
                {
                    "status": status,
                    "reason": reason,
                    "attempts": count,
                    "text": describe_failure(status, reason),
                }
                for (status, reason), count in self._failures.most_common()
            ],
        }


def _as_data(event: SentEvent, attempted: SendOutcome, attempts: int) -> dict[str, Any]:
    return {
        "event": event.kind,
        "id": event.id,
        "acknowledged": attempted.acknowledged,
        "status": attempted.status,
        "outcome": attempted.outcome,
        "attempts": attempts,
        "ms": round(attempted.seconds * 1000, 3),
    }


def _line(event: SentEvent, attempted: SendOutcome) -> str:
    if attempted.acknowledged:
        answer = f"{attempted.status} {attempted.outcome}".ljust(16)
        text = f"{answer} {attempted.seconds * 1000:8.1f} ms"
    else:
        text = describe_failure(attempted.status, attempted.reason)
    return f"{event.kind or 'a body':{KIND_WIDTH}}  {event.id:{ID_WIDTH}}  {text}"
