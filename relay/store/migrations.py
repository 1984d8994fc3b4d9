"""Migrations of a store's schema, as files in a folder of its engine, and who can serve the result.

A relay serves a schema that it knows, and a newer one that names an older one which it knows.
"""

import re
from pathlib import Path
from typing import NamedTuple

from relay.core.errors import StoreTooNew

_OLDEST = re.compile(r"-- oldest: (\d+)\n")


class Schema(NamedTuple):
    """The schema of a store."""

    number: int
    oldest: int
    """A relay that knows this number, or a later one, can serve the schema."""


class Migration(NamedTuple):
    """One migration: `0001_what_it_does.sql`."""

    number: int
    name: str
    sql: str

    @property
    def oldest(self) -> int:
        """Relays that know this number go on over the new schema, without a word of it.

        A migration says so in its first line. Without it, all older relays end.
        """
        said = _OLDEST.match(self.sql)
        return self.number if said is None else int(said[1])


def steps_of(folder: Path) -> tuple[Migration, ...]:
    """Return the migrations in a folder, ordered by number."""
    return tuple(
        Migration(int(file.name[:4]), file.name, file.read_text(encoding="utf-8"))
        for file in sorted(folder.glob("*.sql"))
    )


def require_served(what: str, found: Schema, *, newest: int) -> None:
    """Raise StoreTooNew for a schema that a relay which knows up to `newest` cannot serve."""
    if found.oldest > newest:
        raise StoreTooNew(
            f"{what} is number {found.number}, this relay knows up to {newest}: "
            "run the relay that wrote it, or a newer one"
        )
