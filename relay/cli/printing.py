"""Prints what a command returns, as lines for people or with --json as one JSON object."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec

from relay.cli.parameters import json_option

_MOMENTS_MS = range(1_000_000_000_000, 10_000_000_000_000)
"""Milliseconds of the years 2001 to 2286; smaller numbers are durations."""


class Output(NamedTuple):
    """What a command prints: the document with --json, else the lines.

    Lines that are expensive, or need more of the document, are an iterator: it is not run in vain.
    """

    document: Any
    lines: Iterable[str]
    ok: bool = True
    """Whether the command succeeded; if not, it exits with 1."""

    def print(self, *, as_json: bool) -> None:
        if as_json:
            # ASCII, so that nothing in it controls the terminal.
            click.echo(json.dumps(timed(msgspec.to_builtins(self.document))))
            return
        for line in self.lines:
            click.echo(line)


def printing(command: Callable[..., Output]) -> Callable[..., None]:
    """Add --json to a command, print its output, and exit accordingly."""

    @json_option
    @functools.wraps(command)
    def printed(*arguments: Any, as_json: bool, **named: Any) -> None:
        output = command(*arguments, **named)
        output.print(as_json=as_json)
        click.get_current_context().exit(0 if output.ok else 1)

    return printed


def indented(document: Any) -> Iterator[str]:
    """Yield the lines of a document as indented JSON; invisible characters are escaped."""
    for line in json.dumps(document, indent=2, ensure_ascii=False).split("\n"):
        yield "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def timed(value: Any) -> Any:
    """Add `received_at` in UTC beside `received_ms`, and so on, at every level."""
    match value:
        case dict():
            return {
                name: part for key, item in value.items() for name, part in _field(value, key, item)
            }
        case list():
            return [timed(item) for item in value]
    return value


def _field(document: dict[str, Any], name: str, value: Any) -> list[tuple[str, Any]]:
    beside = "at" if name == "at_ms" else f"{name.removesuffix('_ms')}_at"
    is_moment = name.endswith("_ms") and isinstance(value, int) and value in _MOMENTS_MS
    if not is_moment or beside in document:
        return [(name, timed(value))]
    at = datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
    return [(name, value), (beside, at.replace("+00:00", "Z"))]
