"""Personal data: counted, erased and exported.

The address is in the body, because proxies log paths and queries.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.events import EventHistory, event_history
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.personal_data import Erasure, ErasureRecord, KeptRequest, Mention, View

ERASURES_MAX = 100

Email = Annotated[str, Meta(min_length=3, max_length=320, pattern=r"^[^@]+@[^@\s]+$")]
After = Annotated[str, Meta(pattern=r"^[0-4]\.[0-9]{1,15}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """The person with this e-mail address, which is case-insensitive."""

    email: Email


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Person):
    """A part of a person's data: the first, or the one at `after`, the `next` of a part."""

    after: After | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """Newest first."""

    erasures: Sequence[ErasureRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRequest:
    """A request with the address that is unreadable, or quarantined during a rotation."""

    source: str
    received_ms: int
    reason: str
    headers: str
    body: str
    """The body as text; invalid bytes are replaced."""
    body_base64: str
    """The stored bytes."""
    is_damaged: bool
    """Whether the stored bytes differ from the received ones; never set for a quarantined one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRecords:
    """One part of a person's data; `next` is None in the last."""

    events: Sequence[EventHistory]
    unreadable: Sequence[UnreadableRequest]
    mentions: Sequence[Mention]
    """Answers of destinations that name the person, to events about something else."""
    views: Sequence[View]
    """Views that the audience counts for the person."""
    next: str | None


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on personal data."""

    async def erase_person(_: object, person: Person) -> Erasure:
        try:
            return await admin.people.erase(person.email, now_ms=admin.clock.now_ms())
        finally:
            # Buffered deliveries may be erased, and others may have waited for them, even if the
            # erasure was interrupted.
            admin.sinks.refetch()

    async def count_person(_: object, person: Person) -> Erasure:
        return await admin.people.count(person.email)

    async def list_erasures(_: object) -> Erasures:
        return Erasures(erasures=await admin.people.erasures(limit=ERASURES_MAX))

    async def export_person(_: object, part: Part) -> PersonRecords:
        try:
            records = await admin.people.records(part.email, after=part.after)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return PersonRecords(
            events=[event_history(event) for event in records.events],
            unreadable=[_request(kept) for kept in records.unreadable],
            mentions=records.mentions,
            views=records.views,
            next=records.next,
        )

    return (
        Operation(
            method="POST",
            path="/api/v1/people/erase",
            summary="Erase a person's data, and list the destinations that had received some.",
            handler=erase_person,
            body=Person,
            response=Erasure,
        ),
        Operation(
            method="POST",
            path="/api/v1/people/erase/count",
            summary="Count what an erasure would remove; changes nothing.",
            handler=count_person,
            body=Person,
            response=Erasure,
            read_only=True,
        ),
        Operation(
            method="GET",
            path="/api/v1/people/erasures",
            summary="Past erasures, without the addresses, newest first.",
            handler=list_erasures,
            response=Erasures,
        ),
        Operation(
            method="POST",
            path="/api/v1/people/export",
            summary="Export a person's data, in parts.",
            handler=export_person,
            body=Part,
            response=PersonRecords,
        ),
    )


def _request(kept: KeptRequest) -> UnreadableRequest:
    return UnreadableRequest(
        source=kept.source,
        received_ms=kept.received_ms,
        reason=kept.reason,
        headers=kept.headers.decode("latin-1"),
        body=kept.body.decode(errors="replace"),
        body_base64=base64.b64encode(kept.body).decode(),
        is_damaged=kept.is_damaged,
    )
