"""Suggestions for mistyped names."""

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name as a question to the operator; empty without one."""
    # Only a mistake needs it, and it takes memory.
    from difflib import get_close_matches  # noqa: PLC0415

    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
