"""A person's data: removed, counted beforehand, and handed out.

The address comes in the body, because paths and queries end up in the logs of proxies.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.events import EventHistory, shown
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.personal_data import Erasure, ErasureRecord, KeptRequest, Mention, View

SHOWN = 100

Email = Annotated[str, Meta(min_length=3, max_length=320, pattern=r"^[^@]+@[^@\s]+$")]
After = Annotated[str, Meta(pattern=r"^[0-4]\.[0-9]{1,15}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Whoever has this e-mail address; upper and lower case are one."""

    email: Email


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Person):
    """The first part of what is stored, or the one after another's `next`."""

    after: After | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasures:
    """The newest first."""

    erasures: Sequence[ErasureRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRequest:
    """A request that holds the address and no usable event, or that waits for its secret."""

    source: str
    received_ms: int
    reason: str
    headers: str
    body: str
    """As text, as far as it is one."""
    body_base64: str
    """The received bytes."""
    is_damaged: bool
    """Whether they are others than were received; not known of what waits for its secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRecords:
    """A part of what is stored of a person; `next` is None in the last."""

    events: Sequence[EventHistory]
    unreadable: Sequence[UnreadableRequest]
    mentions: Sequence[Mention]
    """What far ends said of the person when they were sent events about something else."""
    views: Sequence[View]
    """What the audience counts of the person."""
    next: str | None


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be done about a person."""

    async def erase_person(_: object, person: Person) -> Erasure:
        try:
            return await admin.people.erase(person.email, now_ms=admin.clock.now_ms())
        finally:
            # What is gone may be at hand, and what is left may have waited for it; also where the
            # erasure did not come to its end.
            admin.sinks.refetch()

    async def count_person(_: object, person: Person) -> Erasure:
        return await admin.people.count(person.email)

    async def list_erasures(_: object) -> Erasures:
        return Erasures(erasures=await admin.people.erasures(limit=SHOWN))

    async def export_person(_: object, part: Part) -> PersonRecords:
        try:
            found = await admin.people.records(part.email, after=part.after)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return PersonRecords(
            events=[shown(each) for each in found.events],
            unreadable=[_request(each) for each in found.unreadable],
            mentions=found.mentions,
            views=found.views,
            next=found.next,
        )

    return (
        Operation(
            method="POST",
            path="/api/v1/people/erase",
            summary="Remove what is stored of a person, and say who had been told what.",
            handler=erase_person,
            body=Person,
            answer=Erasure,
        ),
        Operation(
            method="POST",
            path="/api/v1/people/erase/count",
            summary="What such an erasure would remove; changes nothing.",
            handler=count_person,
            body=Person,
            answer=Erasure,
            only_asks=True,
        ),
        Operation(
            method="GET",
            path="/api/v1/people/erasures",
            summary="The erasures there were, without the addresses, the newest first.",
            handler=list_erasures,
            answer=Erasures,
        ),
        Operation(
            method="POST",
            path="/api/v1/people/export",
            summary="What is stored of a person, in parts.",
            handler=export_person,
            body=Part,
            answer=PersonRecords,
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
