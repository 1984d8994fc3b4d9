"""Prints data for people: aligned columns, readable times, no terminal control characters."""

import math
import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime

import click

from relay.core.units import span


def show(head: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table with minimal column widths, or `empty` if it has no rows."""
    lines = [[safe(cell) for cell in row] for row in rows]
    if not lines:
        click.echo(empty)
        return
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width():
        _blocks(head, lines)
        return
    for line in (head, *lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def _blocks(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print one cell per line, because a wrapped row would break ids."""
    for number, line in enumerate(lines):
        if number:
            click.echo()
        pairs(zip(head, line, strict=True))


def pairs(rows: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Print names and values, one pair per line."""
    lines = [(name, safe(value)) for name, value in rows]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{indent}{name:{width}}  {value}".rstrip())


def flow(parts: Sequence[str]) -> None:
    """Print parts on one line, or on several in a narrow terminal, without breaking a part."""
    line, lines = "", []
    for part in map(safe, parts):
        longer = f"{line}  {part}" if line else part
        if line and len(longer) > width():
            lines.append(line)
            longer = f"  {part}"
        line = longer
    click.echo("\n".join(line.rstrip() for line in (*lines, line)))


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


def moment(ms: int | None) -> str:
    """Format a local time with its offset, as `--since` accepts it; a dash for None."""
    if ms is None:
        return "-"
    text = datetime.fromtimestamp(ms // 1000).astimezone().isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def ago(ms: int | None, *, now_ms: int) -> str:
    """Format the time since or until a moment, in its largest unit; a dash for None."""
    if ms is None:
        return "-"
    length = span(abs(now_ms - ms))
    return f"{length} ago" if ms <= now_ms else f"in {length}"
