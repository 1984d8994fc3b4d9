"""One problem of a relay, with its severity."""

from typing import Literal

import msgspec

from relay.core.units import duration, number

Severity = Literal["page", "ticket", "info"]
"""Page: events are being lost, or soon will be. Ticket: needs action within a working day.

Info: the relay recovers without action, or an operator caused this.
"""

SEVERITIES: tuple[Severity, ...] = ("page", "ticket", "info")
"""Most severe first."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem."""

    severity: Severity
    what: str
    since_ms: int | None = None
    """Milliseconds since the epoch; None if unknown."""
    why: str
    next: str
    """The command to run next."""
    runbook: str | None = None
    """Anchor of its section in the runbook."""


def is_over(since_ms: int | None, limit_ms: int, *, now_ms: int) -> bool:
    """Whether something has lasted for longer than a limit."""
    return since_ms is not None and now_ms - since_ms > limit_ms


def requests(count: int) -> str:
    return "1 request" if count == 1 else f"{number(count)} requests"


def ahead(skew_s: float, *, of: str) -> str:
    """Describe a clock relative to another one."""
    return f"{duration(abs(skew_s) * 1000)} {'ahead of' if skew_s > 0 else 'behind'} {of}"
