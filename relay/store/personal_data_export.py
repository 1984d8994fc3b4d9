"""Export of a person's data, in parts that continue one another."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import orjson

from relay.store.email_matcher import EmailMatcher
from relay.store.events import AttemptRecord, Events, History
from relay.store.personal_data_places import (
    KEYS,
    PLACES,
    SCAN_ROWS,
    PersonalDataPlace,
    PersonalDataSearch,
)
from relay.store.repository import Connections, Repository, rows
from relay.store.rows import Row, is_damaged
from relay.store.sql import Sql

PART_BYTES = 4 << 20
PART_STEPS = 40
"""Size and number of steps after which a part ends."""

SECTIONS = ("events", "unreadable", "quarantine", "excerpts", "views")
"""Names of the places that are exported, in this order."""

UNVERIFIED = "it fits no secret of the source so far"
"""Reason of a quarantined request."""


class KeptRequest(msgspec.Struct, frozen=True):
    """An unreadable or a quarantined request; `reason` says which."""

    source: str
    received_ms: int
    reason: str
    headers: bytes
    body: bytes
    is_damaged: bool
    """Whether the stored body differs from the received one; never set for a quarantined one."""


class Mention(msgspec.Struct, frozen=True):
    """A destination's answer that names the person, to an event about something else."""

    source: str
    id: str
    attempt: AttemptRecord


class View(msgspec.Struct, frozen=True):
    """A step that the person reached in a video; it outlives its event."""

    source: str
    video: str | None
    title: str | None
    step: str
    """A milestone, or `lead`."""
    at_ms: int


Record = History | KeptRequest | Mention | View


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a person's data; `next` is the cursor of the following part, None in the last."""

    events: Sequence[History]
    unreadable: Sequence[KeptRequest]
    mentions: Sequence[Mention]
    views: Sequence[View]
    next: str | None

    @classmethod
    def of(cls, records: Sequence[Record], following: "Cursor") -> "Records":
        """Sort records by their type."""
        return cls(
            events=[each for each in records if isinstance(each, History)],
            unreadable=[each for each in records if isinstance(each, KeptRequest)],
            mentions=[each for each in records if isinstance(each, Mention)],
            views=[each for each in records if isinstance(each, View)],
            next=None if following.is_over else str(following),
        )


_CURSOR = re.compile(r"([0-9])\.([0-9]{1,18})(?:-([0-9]{1,18}))?")
_PLACES = {place.name: place for place in PLACES}


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
    def place(self) -> PersonalDataPlace:
        return _PLACES[SECTIONS[self.section]]

    @property
    def is_over(self) -> bool:
        return self.section >= len(SECTIONS)

    def following(self, start: int | None) -> "Cursor":
        """Return the next cursor, after a search that ended before `start`."""
        if start is None or (self.end is not None and start > self.end):
            return Cursor(self.section + 1)
        return self._replace(start=start)


_ROWS = {
    "unreadable": Sql(f"""
    SELECT source, received_at, reason, headers, body, digest
    FROM main.unreadable WHERE rowid IN {KEYS} ORDER BY rowid
    """),
    "quarantine": Sql(f"""
    SELECT source, received_at, '{UNVERIFIED}', headers, body, NULL
    FROM main.quarantine WHERE number IN {KEYS} ORDER BY number
    """),
    "excerpts": Sql(f"""
    SELECT e.source, e.id, e.body, a.sink, a.started_at, a.duration_ms, a.result, a.status,
        a.reason, a.answer, a.replay
    FROM main.attempts AS a JOIN main.events AS e ON e.seq = a.event
    WHERE a.rowid IN {KEYS} ORDER BY a.rowid
    """),
    "views": Sql(f"""
    SELECT a.source, v.id, v.title, a.step, a.at
    FROM main.audience AS a LEFT JOIN main.videos AS v ON v.number = a.video
    WHERE a.event IN {KEYS} ORDER BY a.event
    """),
}
"""By the names of the places; events are read with their deliveries and attempts."""


class PersonalDataExport(Repository):
    """Reads what a search has found; all methods may raise StoreError."""

    def __init__(
        self, connections: Connections, search: PersonalDataSearch, events: Events
    ) -> None:
        super().__init__(connections)
        self._search = search
        self._events = events

    async def part(self, address: EmailMatcher, *, after: str | None) -> Records:
        """Return a part of a person's data; `after` is the `next` of the previous part.

        Raises ValueError for an invalid `after`.
        """
        cursor = Cursor.parse(after)
        records: list[Record] = []
        size = 0
        for _ in range(PART_STEPS):
            place = cursor.place
            if cursor.end is None:
                cursor = cursor._replace(end=max(0, await self._search.last(place)))
            matches = await self._search.find(place, address, start=cursor.start, rows=SCAN_ROWS)
            if matches.rows:
                records += await self._records(place, address, matches.keys)
            cursor = cursor.following(matches.next)
            size += sum(bytes_ for _, bytes_ in matches.rows)
            if cursor.is_over or size > PART_BYTES:
                break
        return Records.of(records, cursor)

    async def _records(
        self, place: PersonalDataPlace, address: EmailMatcher, keys: Sequence[int]
    ) -> Sequence[Record]:
        if place.name == "events":
            histories = [await self._events.history(key) for key in keys]
            return [each for each in histories if each is not None]
        found = await rows(self._reader, _ROWS[place.name], {"keys": orjson.dumps(keys).decode()})
        match place.name:
            case "excerpts":
                return _mentions(found, address)
            case "views":
                return [View(*each) for each in found]
        return [_request(each) for each in found]


def _request(columns: Row) -> KeptRequest:
    source, received_ms, reason, headers, body, received = columns
    damaged = received is not None and is_damaged(body, received)
    return KeptRequest(source, received_ms, reason, headers or b"", body or b"", damaged)


def _mentions(found: Iterable[Row], address: EmailMatcher) -> list[Mention]:
    """Leave out answers to the person's own events, which already include them."""
    return [
        Mention(source, event_id, AttemptRecord(*attempt))
        for source, event_id, body, *attempt in found
        if not address.stands_in(body)
    ]
