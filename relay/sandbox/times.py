"""The text form of times: UTC with milliseconds, such as `2026-03-02T09:30:00.000Z`."""

from datetime import UTC, datetime


def written(ms: int) -> str:
    """Format milliseconds since the epoch."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def written_or_none(ms: int | None) -> str | None:
    """Format milliseconds since the epoch, or None."""
    return None if ms is None else written(ms)
