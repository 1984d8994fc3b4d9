"""Protocol of the audience's tables, which each engine fulfils in SQL."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from relay.store.audience.days import Key, View
from relay.store.audience.span import Span

Row = tuple[Any, ...]

ROLLED_TO = "audience_days"
"""Name of the state that holds the last event in the audience by day."""

Numbers = tuple[int, int, int]
"""People, events, and events without an address."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of the audience's rows; None selects all."""

    since_ms: int | None
    until_ms: int | None
    """Exclusive."""
    source: str | None
    video: str | None = None


class Place(NamedTuple):
    """Rows of a time that are in the audience by day, or that are not in it yet."""

    span: Span
    is_rolled_up: bool


class RawView(NamedTuple):
    """A row of the audience with the person's digest, because not every person has a number."""

    view: View
    person: int | None


class Pairs(NamedTuple):
    """Rows of one source and step: pairs of video and person, and videos of anonymous events."""

    source: str
    step: str
    pairs: Sequence[int]
    anonymous: Sequence[int]


class FunnelTables(Protocol):
    """Reads of one snapshot."""

    def extent(self) -> tuple[int, int] | None:
        """Return the times of the first and the last row."""
        ...

    def video(self, id_: str) -> int | None:
        """Return the number of a video."""
        ...

    def titles(self, videos: Sequence[int]) -> Mapping[int, tuple[str, str | None]]:
        """Return ids and titles by number."""
        ...

    def oldest_uncounted(self) -> int | None:
        """Return the receipt of the first uncounted event; None if all are counted."""
        ...

    def days(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        """Return day, source, step and columns of each day of a time."""
        ...

    def weeks(self, columns: str, span: Span, source: str | None) -> Iterable[Row]:
        """Return the same of the whole weeks of a time, and of its other days."""
        ...

    def count(self, place: Place, source: str | None, video: int | None, *, limit: int) -> int:
        """Count rows, up to a limit."""
        ...

    def raw_views(
        self, place: Place, source: str | None, video: int | None
    ) -> Iterable[RawView]: ...

    def pairs(self, place: Place, source: str | None) -> Iterable[Pairs]: ...

    def last_ms(self, rows: Rows) -> int | None:
        """Return the time of the last of some rows."""
        ...

    def first_ms(self, rows: Rows) -> int | None:
        """Return the time of the first of some rows."""
        ...

    def steps(self, rows: Rows) -> Iterable[tuple[str, *Numbers]]:
        """Count rows by step."""
        ...

    def groups(self, rows: Rows, group: str) -> Iterable[tuple[Any, str, *Numbers]]:
        """Count rows by a column, or another SQL expression, and by step."""
        ...


class Uncounted(NamedTuple):
    """An event that the audience has not counted; no body where it cannot be of interest."""

    seq: int
    source: str
    kind: str
    received_ms: int
    body: bytes | None
    is_reconstructed: bool


class CountedView(NamedTuple):
    """A new row of the audience."""

    event: int
    source: str
    video: int | None
    """Its number."""
    step: str
    person: int | None
    """A keyed digest of the address."""
    at_ms: int


class Changed(NamedTuple):
    """What an event says of a video beside its views."""

    source: str
    video: int
    """Its number."""
    change: str
    event: int
    at_ms: int


class CountingTables(Protocol):
    """Writes of one transaction."""

    def name_videos(self, titles: Mapping[str, str | None]) -> Mapping[str, int]:
        """Store the titles by id, where there are any, and return the videos' numbers."""
        ...

    def add_views(self, views: Sequence[CountedView]) -> None: ...

    def add_changes(self, changes: Sequence[Changed]) -> None: ...

    def set_counted_to(self, event: int) -> None: ...


class RollupTables(Protocol):
    """Reads and writes of one transaction."""

    def rolled_to(self) -> int:
        """Return the last event in the audience by day."""
        ...

    def set_rolled_to(self, event: int) -> None: ...

    def newest_day_events(self) -> int:
        """Return the number of events of the newest day."""
        ...

    def next_rows(self, after: int, limit: int) -> tuple[int, int | None]:
        """Return the number of the rows that follow, up to a limit, and the last one's event."""
        ...

    def new_people(self, after: int, upto: int) -> Sequence[int]:
        """Return the people of the rows who have no number."""
        ...

    def number(self, people: Sequence[int]) -> None:
        """Give numbers to people; a number is never given twice."""
        ...

    def views(self, after: int, upto: int) -> Iterable[View]: ...

    def rolled_up(self, events: Sequence[int]) -> Iterable[View]:
        """Return those of the rows that are in the audience by day."""
        ...

    def days(self, keys: Collection[Key]) -> Mapping[Key, Row]:
        """Return the four columns of sets of those days that are stored."""
        ...

    def save_days(self, days: Mapping[Key, Row]) -> None: ...

    def clear_days(self) -> None:
        """Remove all days and weeks."""
        ...

    def missing_week(self) -> Key | None:
        """Return a week that is over and not stored, by its first day."""
        ...

    def days_of_week(self, week: Key) -> Iterable[Row]:
        """Return the four columns of sets of each day."""
        ...

    def save_week(self, week: Key, columns: Row) -> None: ...

    def drop_weeks(self, weeks: Collection[Key]) -> None: ...

    def views_of(self, person: int) -> Iterable[View]:
        """Return those of a person's rows that were added to days during an erasure."""
        ...

    def views_on(self, key: Key, people: Sequence[int]) -> Iterable[View]:
        """Return the rows of people, by number, that are in one of the days."""
        ...

    def delete_views(self, events: Sequence[int]) -> None: ...

    def delete_viewer(self, person: int) -> None:
        """Remove a person's number."""
        ...
