"""How data is printed for people: aligned columns, times that can be read, nothing that acts."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import click

_STEPS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def show(head: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print rows under their heads, each column as wide as it must be; `empty` where none are."""
    lines = [[safe(cell) for cell in row] for row in rows]
    if not lines:
        click.echo(empty)
        return
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def pairs(rows: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Print names and values, a line each."""
    lines = [(name, safe(value)) for name, value in rows]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{indent}{name:{width}}  {value}".rstrip())


def safe(text: str) -> str:
    """The text with whatever a terminal would obey, or could be misled by, made visible."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def moment(ms: int | None) -> str:
    """Local time to the second; a dash for none."""
    if ms is None:
        return "-"
    return f"{datetime.fromtimestamp(ms // 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def ago(ms: int | None, *, now_ms: int) -> str:
    """How long ago, or until when, in its largest unit; a dash for none."""
    if ms is None:
        return "-"
    length = span(abs(now_ms - ms))
    return f"{length} ago" if ms <= now_ms else f"in {length}"


def span(ms: int) -> str:
    """A length of time in its largest unit."""
    seconds = ms // 1000
    number, unit = next(
        ((seconds // size, name) for size, name in _STEPS if seconds >= size), (0, "s")
    )
    return f"{number} {unit}"
