"""Prints data as JSON, with readable times and no terminal control characters."""

import json
from datetime import UTC, datetime
from typing import Any

import click

_MOMENTS_MS = range(1_000_000_000_000, 10_000_000_000_000)
"""Milliseconds of the years 2001 to 2286; smaller numbers are durations."""


def print_json(document: Any) -> None:
    """Print a response of the API in one line of ASCII, with readable times."""
    click.echo(json.dumps(timed(document)))


def print_indented(document: Any) -> None:
    """Print a document on indented lines; invisible characters are escaped."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    click.echo("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text))


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def timed(value: Any) -> Any:
    """Add `received_at` in UTC beside `received_ms`, and so on, at every level."""
    match value:
        case dict():
            return {
                name: part for key, item in value.items() for name, part in _field(value, key, item)
            }
        case list() | tuple():
            return [timed(item) for item in value]
    return value


def _field(document: dict[str, Any], name: str, value: Any) -> list[tuple[str, Any]]:
    beside = "at" if name == "at_ms" else f"{name.removesuffix('_ms')}_at"
    is_moment = name.endswith("_ms") and isinstance(value, int) and value in _MOMENTS_MS
    if not is_moment or beside in document:
        return [(name, timed(value))]
    at = datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
    return [(name, value), (beside, at.replace("+00:00", "Z"))]
