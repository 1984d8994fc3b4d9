"""Texts for the result of a sink's `check`."""

from relay.cli.output import safe
from relay.core.delivery import Result

_CONSEQUENCES: dict[Result, str] = {
    "parked": "an event would park the sink until an operator acts",
    "retry": "an event would be retried",
    "dead": "an event would become a dead letter",
}


def reached(detail: str | None) -> str:
    """Describe a success."""
    return safe(f"reached ({detail})" if detail else "reached")


def failed(reason: str, status: int | None, result: Result) -> str:
    """Describe a failure and its consequence for an event."""
    code = "" if status is None or str(status) in reason else f" (status {status})"
    return safe(f"{reason}{code}; {_CONSEQUENCES[result]}")
