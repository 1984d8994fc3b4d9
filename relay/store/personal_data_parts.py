"""Export of a person's data, in parts that continue one another."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from relay.store.events import History
from relay.store.personal_data import KeptRequest, Mention, Records, View

PART_BYTES = 4 << 20
PART_STEPS = 40
"""Size and number of steps after which a part ends."""

SECTIONS = ("events", "unreadable", "quarantine", "excerpts", "views")
"""Names of the places that are exported, in this order."""

UNVERIFIED = "it fits no secret of the source so far"
"""Reason of a quarantined request."""

_CURSOR = re.compile(r"([0-9])\.([0-9]{1,18})(?:-([0-9]{1,18}))?")

Record = History | KeptRequest | Mention | View


class Cursor(NamedTuple):
    """A section, the first key to read in it, and the last one, as of its beginning."""

    section: int = 0
    start: int = 0
    end: int | None = None
    """None at the beginning of a section."""

    @classmethod
    def parse(cls, text: str | None) -> "Cursor":
        """Parse what `str` returns; raises ValueError for anything else."""
        if text is None:
            return cls()
        match = _CURSOR.fullmatch(text)
        if match is None or int(match[1]) >= len(SECTIONS):
            raise ValueError("after is invalid; pass the `next` of the previous part")
        return cls(int(match[1]), int(match[2]), None if match[3] is None else int(match[3]))

    def __str__(self) -> str:
        return f"{self.section}.{self.start}" + ("" if self.end is None else f"-{self.end}")

    @property
    def name(self) -> str:
        """Return the place of the section."""
        return SECTIONS[self.section]

    @property
    def is_over(self) -> bool:
        return self.section >= len(SECTIONS)

    def following(self, start: int | None) -> "Cursor":
        """Return the next cursor, after a search that ended before `start`."""
        if start is None or (self.end is not None and start > self.end):
            return Cursor(self.section + 1)
        return self._replace(start=start)


def part(records: Sequence[Record], following: Cursor) -> Records:
    """Sort records by their type."""
    return Records(
        events=[each for each in records if isinstance(each, History)],
        unreadable=[each for each in records if isinstance(each, KeptRequest)],
        mentions=[each for each in records if isinstance(each, Mention)],
        views=[each for each in records if isinstance(each, View)],
        next=None if following.is_over else str(following),
    )
