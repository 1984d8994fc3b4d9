"""Prints what commands return: for people without control characters, or as one JSON object."""

import functools
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec

from relay.cli.parameters import json_option
from relay.core.delivery import Result
from relay.core.sink_status import REASON_WORDS, Flow, outlook_of, place, rate, stands_still
from relay.core.units import number, relative

_LAST_S = 253_370_764_800
"""The first second of the year 9999: any zone's local time of it is still a datetime."""

_CONSEQUENCES: dict[Result, str] = {
    "parked": "an event would park the sink until an operator acts",
    "retry": "an event would be retried",
    "dead": "an event would become a dead letter",
}
_MOMENTS_MS = range(1_000_000_000_000, 10_000_000_000_000)
"""Milliseconds of the years 2001 to 2286; smaller numbers are durations."""


def table(rows: Iterable[Mapping[str, object]], *, empty: str) -> Iterator[str]:
    """Yield the lines of a table with minimal column widths, or `empty` if it has no rows.

    A row maps the heads to its cells; a dash stands for None. A cell that is a number is a count.
    """
    rows = list(rows)
    if not rows:
        yield empty
        return
    lines = [["-" if cell is None else _text(cell) for cell in row.values()] for row in rows]
    head = list(rows[0])
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= width():
        for line in (head, *lines):
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            yield "  ".join(cells).rstrip()
        return
    # One cell per line, because a wrapped row would break ids.
    for index, line in enumerate(lines):
        if index:
            yield ""
        yield from pairs(zip(head, line, strict=True))


def pairs(rows: Iterable[tuple[str, object]], *, indent: str = "") -> Iterator[str]:
    """Yield a line for each name and value."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        yield f"{indent}{name:{width}}  {_text(value)}".rstrip()


def _text(value: object) -> str:
    return number(value) if type(value) is int else safe(str(value))


def flow(parts: Iterable[str]) -> Iterator[str]:
    """Yield parts as one line, or as several in a narrow terminal, without breaking a part."""
    line = ""
    for part in map(safe, parts):
        longer = f"{line}  {part}" if line else part
        if line and len(longer) > width():
            yield line.rstrip()
            longer = f"  {part}"
        line = longer
    yield line.rstrip()


def width() -> float:
    """Return the columns of the terminal, or of $COLUMNS; infinite without either."""
    columns = shutil.get_terminal_size((0, 0)).columns
    return columns or math.inf


def safe(text: str) -> str:
    """Escape the characters of a text that a terminal would interpret or hide."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def local(seconds: float) -> datetime:
    """Return a local time; one beyond the years of a datetime is its last or first day."""
    return datetime.fromtimestamp(min(max(seconds, 86_400), _LAST_S)).astimezone()


def moment(ms: int | None) -> str:
    """Format a local time with its offset, as `--since` accepts it; a dash for None."""
    if ms is None:
        return "-"
    text = local(ms // 1000).isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def ago(ms: int | None, *, now_ms: int) -> str:
    """Format the time since or until a moment, in its largest unit; a dash for None."""
    return "-" if ms is None else relative(ms, now_ms)


def when(ms: int, *, now_ms: int) -> str:
    """Format a moment as its local time and its distance from now."""
    return f"{moment(ms)}, {ago(ms, now_ms=now_ms)}"


def waits_for(condition: Mapping[str, Any], *, now_ms: int) -> str | None:
    """Format what a sink waits for, by its `SinkStatus` as JSON; None if it is free to send."""
    since_ms, reason = condition["stands_still_since_ms"], condition["waits_for"]
    if stands_still(since_ms, now_ms=now_ms):
        return f"nothing: stands still (began {ago(since_ms, now_ms=now_ms)})"
    # One of a newer relay may be unknown.
    return None if reason is None else REASON_WORDS.get(reason, reason)


def deliveries(count: int) -> str:
    """Format a number of deliveries."""
    return "1 delivery" if count == 1 else f"{number(count)} deliveries"


def check_passed(detail: str | None) -> str:
    """Describe a sink's check that reached its destination."""
    return safe(f"reached ({detail})" if detail else "reached")


def check_failed(reason: str, status: int | None, result: Result) -> str:
    """Describe a failed check, and what would become of an event."""
    code = "" if status is None or str(status) in reason else f" (status {status})"
    return safe(f"{reason}{code}; {_CONSEQUENCES[result]}")


def flow_of(condition: Mapping[str, Any]) -> Flow | None:
    """Return the flow; None if it is not known, or the relay is of a version without it."""
    flow = condition.get("flow")
    return None if flow is None else msgspec.convert(flow, Flow)


def backlog_cells(
    condition: Mapping[str, Any], pending: int | None, *, now_ms: int
) -> dict[str, object]:
    """Return the cells of a table: deliveries a minute in and out, and when nothing waits."""
    flow, still_ms = flow_of(condition), condition["stands_still_since_ms"]
    return {
        "IN/MIN": None if flow is None else rate(flow.in_per_minute),
        "OUT/MIN": None if flow is None else rate(flow.out_per_minute),
        "DONE": outlook_of(condition["state"], still_ms, flow, pending=pending, now_ms=now_ms),
    }


def place_of(queued: Mapping[str, Any], condition: Mapping[str, Any]) -> str:
    """Return how many deliveries are ahead of one, in words; empty if it is next."""
    return place(queued["ahead"], is_more=queued["is_more"], flow=flow_of(condition))


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
