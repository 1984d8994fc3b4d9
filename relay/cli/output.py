"""Formats data for people: aligned columns, readable times, no terminal control characters."""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from relay.core.sink_status import REASON_WORDS, stands_still
from relay.core.units import number, relative

_LAST_S = 253_370_764_800
"""The first second of the year 9999: any zone's local time of it is still a datetime."""


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
    for place, line in enumerate(lines):
        if place:
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
