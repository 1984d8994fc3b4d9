"""Migrations of a store's schema, as files in a folder of its engine."""

from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    """One migration: `0001_what_it_does.sql`."""

    number: int
    name: str
    sql: str


def steps_of(folder: Path) -> tuple[Step, ...]:
    """Return the migrations in a folder, ordered by number."""
    return tuple(
        Step(int(file.name[:4]), file.name, file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.sql"))
    )
