"""Protocol and records of personal data, by e-mail address."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from relay.store.events import AttemptRecord, History


class SentEvents(msgspec.Struct, frozen=True):
    """Events of one kind sent to one sink; `last_ms` is the end of the last such attempt."""

    sink: str
    kind: str
    count: int
    last_ms: int


class UnderWay(msgspec.Struct, frozen=True):
    """A delivery in flight when its event was erased."""

    sink: str
    source: str
    id: str


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """Result or forecast of an erasure; the numbers are rows."""

    events: int
    """Events whose body and headers are removed; their ids stay."""
    pending: int
    """Pending deliveries of these events that are discarded."""
    dead: int
    """Dead letters of these events that are discarded."""
    unreadable: int
    quarantine: int
    """Unverified requests that wait for a new secret."""
    excerpts: int
    """Excerpts of destinations' answers to other events."""
    reasons: int
    """Failure reasons that contain the address, which they never should."""
    searches: int
    """Replays selected by the address; running ones are cancelled."""
    views: int = 0
    """Views and leads in the audience."""
    videos: int = 0
    """Titles and ids of videos that contain the address."""
    reports: int = 0
    """Reports of reconciliations whose names are removed."""
    kept_ids: int
    """Event ids that contain the address, and stay."""
    told: Sequence[SentEvents]
    """Deliveries that sinks have confirmed, which cannot be recalled."""
    unconfirmed: Sequence[SentEvents]
    """Attempts without a confirmation; the destination may have the event."""
    under_way: Sequence[UnderWay]
    """Deliveries that may still arrive."""
    wiped: bool
    """Whether unused parts of the store's files are overwritten; never in PostgreSQL."""
    remains: str = ""
    """What still holds the data after an erasure, in words for the operator; empty before it."""


class ErasureRecord(msgspec.Struct, frozen=True):
    """One recorded erasure."""

    id: int
    begun_ms: int
    ended_ms: int | None
    """None while it runs, and if an older relay was interrupted, so that it must be repeated."""
    person: str
    """Keyed digest of the address, in hex, which only shows whether two persons are the same."""
    erasure: Erasure | None
    """The result, or what is removed so far; None of one that must be repeated."""
    share: float | None
    """How much of the store is searched, 0 to 1; None of one that must be repeated."""


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


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a person's data; `next` is the cursor of the following part, None in the last."""

    events: Sequence[History]
    unreadable: Sequence[KeptRequest]
    mentions: Sequence[Mention]
    views: Sequence[View]
    next: str | None


COUNTS = {
    "events": "bodies and headers; their ids are kept",
    "pending": "pending deliveries, discarded",
    "dead": "dead letters, discarded",
    "unreadable": "requests without an event",
    "quarantine": "requests kept during a secret rotation",
    "excerpts": "responses of destinations about other events",
    "reasons": "failure reasons with the address",
    "searches": "replays selected by the address",
    "views": "views and leads of the audience report",
    "videos": "titles and ids of videos with the address",
    "reports": "reports of reconciliations with the address; their numbers stay",
}
"""What an erasure removes, by the names of its numbers."""


def always() -> bool:
    """Go on to the end."""
    return True


def nothing() -> None:
    """Tell nobody of the progress."""


class PersonalData(Protocol):
    """Personal data of the person with a whole e-mail address, which is case-insensitive.

    All methods may raise StoreError.
    """

    async def order(self, email: str, *, now_ms: int) -> int:
        """Order the erasure of a person's data up to now, unless one runs; return its number.

        Nothing is removed yet, but `advance` will, also after a restart. The ids of events stay, so
        that a late retry is a duplicate, and a record without the address.
        """
        ...

    async def advance(
        self, *, goes_on: Callable[[], bool] = always, progressed: Callable[[], None] = nothing
    ) -> bool:
        """Carry the oldest ordered erasure on to its end; False if there is none.

        After an error, a cancellation, or once `goes_on` is false between two steps, the next call
        goes on from there. `progressed` is called now and then.
        """
        ...

    async def erasure(self, number: int) -> ErasureRecord | None: ...

    async def count(self, email: str) -> Erasure:
        """Count what `erase` would remove now; changes nothing."""
        ...

    async def erasures(self, *, limit: int, email: str | None = None) -> Sequence[ErasureRecord]:
        """Return the newest erasures, of one person or of all."""
        ...

    async def records(self, email: str, *, after: str | None) -> Records:
        """Return a part of a person's data; `after` is the `next` of the previous part.

        Raises ValueError for an invalid `after`.
        """
        ...
