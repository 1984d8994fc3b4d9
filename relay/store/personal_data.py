"""A person's data in a store, by e-mail address: the protocol, and the records it speaks in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.store.operations import AttemptRecord, History


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Events of one kind that one sink was sent; `last_ms` is the end of the last such attempt."""

    sink: str
    kind: str
    count: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A delivery that was being sent, or about to be, when its event was erased."""

    sink: str
    source: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What was removed, or would be; the numbers are rows."""

    events: int
    """Bodies and heads; the ids stay."""
    pending: int
    """Of these events, deliveries that were discarded before they were made."""
    dead: int
    """Dead letters that were discarded."""
    unreadable: int
    quarantine: int
    """Requests that wait for a new secret, and that nobody has verified."""
    excerpts: int
    """Of far ends' answers about other events."""
    reasons: int
    """Texts of failures that held the address, which they never should."""
    searches: int
    """Replays that were chosen by the address; one that was running has ended."""
    views: int = 0
    """Of videos, and leads, as the audience counts them."""
    videos: int = 0
    """Titles and ids of videos that held the address."""
    kept_ids: int
    """Event ids that hold the address themselves, and stay all the same."""
    told: Sequence[Told]
    """What had been confirmed by sinks, and cannot be recalled."""
    unconfirmed: Sequence[Told]
    """What was tried and never confirmed; the far end may have it."""
    under_way: Sequence[UnderWay]
    """What may still arrive."""
    wiped: bool
    """Whether no trace is left in the file's unused parts; if not, that goes on by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRecord:
    """One erasure as it is remembered."""

    id: int
    begun_ms: int
    ended_ms: int | None
    """None where it was cut off: then it is to be repeated."""
    person: str
    """A keyed digest of the address, in hex: two of one person are equal, and say no more."""
    erasure: Erasure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRequest:
    """A request without a usable event in it, or one that waits for its secret: see `reason`."""

    source: str
    received_ms: int
    reason: str
    headers: bytes
    body: bytes
    is_damaged: bool
    """Whether the body is another than was received; not known of what waits for its secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """What a far end said of the person when it was sent an event about something else."""

    source: str
    id: str
    attempt: AttemptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A step of a video that the person reached; kept longer than the event that told of it."""

    source: str
    video: str | None
    title: str | None
    step: str
    """A milestone, or lead."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """A part of what is known of a person; `next` leads to the part after, None from the last."""

    events: Sequence[History]
    unreadable: Sequence[KeptRequest]
    mentions: Sequence[Mention]
    views: Sequence[View]
    next: str | None


class PersonalData(Protocol):
    """Whoever is asked about is given as an e-mail address, in any case; whole ones only count.

    All methods may raise StoreError.
    """

    async def erase(self, email: str, *, now_ms: int) -> Erasure:
        """Remove what is stored of a person up to now, and leave a record without the address.

        May be repeated; the ids of events stay, so that a late repetition is a duplicate.
        """
        ...

    async def count(self, email: str) -> Erasure:
        """What `erase` would remove now; changes nothing."""
        ...

    async def erasures(self, *, limit: int) -> Sequence[ErasureRecord]:
        """The newest."""
        ...

    async def records(self, email: str, *, after: str | None) -> Records:
        """What is stored of a person; `after` is the `next` of the part before.

        Raises ValueError for an `after` that is none.
        """
        ...
