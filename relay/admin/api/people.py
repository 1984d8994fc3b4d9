"""Personal data: counted, erased and exported.

The address is in the body, because proxies log paths and queries.
"""

import base64
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.events import EventHistory, event_history
from relay.admin.api.parameters import Number
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.core.watch_history import KeptHistory
from relay.store.erasures import Erasure, ErasureRecord
from relay.store.personal_data_export import KeptRequest, Mention, View

ERASURES_MAX = 100

Email = Annotated[str, Meta(min_length=3, max_length=320, pattern=r"^[^@]+@[^@\s]+$")]
After = Annotated[str, Meta(pattern=r"^[0-4]\.[0-9]{1,15}(-[0-9]{1,15})?$")]


class PersonQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The person with this e-mail address, which is case-insensitive."""

    email: Email


class ExportPart(PersonQuery, frozen=True, kw_only=True):
    """A part of a person's data: the first, or the one at `after`, the `next` of a part."""

    after: After | None = None


class ErasureId(msgspec.Struct, frozen=True, kw_only=True):
    """One erasure."""

    id: Number


class ErasureState(Erasure, frozen=True, kw_only=True):
    """An erasure, and what it has removed so far."""

    id: int
    begun_ms: int
    """It covers what the store had then, and may cover more."""
    ended_ms: int | None
    """None while it runs."""
    share: float
    """How much of the store is searched, 0 to 1."""


class Erasures(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first."""

    erasures: Sequence[ErasureRecord]


class UnreadableRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class PersonRecords(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a person's data; `next` is None in the last."""

    events: Sequence[EventHistory]
    unreadable: Sequence[UnreadableRequest]
    mentions: Sequence[Mention]
    """Answers of destinations that name the person, to events about something else."""
    views: Sequence[View]
    """Views that the audience counts for the person."""
    watched: Sequence[KeptHistory]
    """In the last part: what the video service's API said the person had watched.

    It is kept in memory for some minutes, for sinks with `enrich`, and never stored.
    """
    next: str | None


async def erase_person(admin: AdminServices, _: Nothing, person: PersonQuery) -> ErasureState:
    """Erase a person's data, and list the destinations that have received some of it.

    The response comes when the erasure has ended, or after ten seconds. Then `ended_ms` is null and
    the erasure continues in the background; repeat the request to see its progress.
    """
    return _state(await admin.erase(person.email))


async def show_erasure(admin: AdminServices, path: ErasureId) -> ErasureState:
    """Show one erasure, and what it has removed so far."""
    record = await admin.store.personal_data.erasure(path.id)
    if record is None:
        raise HTTPException(404, f"There is no erasure {path.id}.")
    return _state(record)


def _state(record: ErasureRecord) -> ErasureState:
    if record.erasure is None:
        text = f"Erasure {record.id} was interrupted by the end of an older relay; erase again."
        raise HTTPException(409, text)
    return ErasureState(
        **asdict(record.erasure),
        id=record.id,
        begun_ms=record.begun_ms,
        ended_ms=record.ended_ms,
        share=record.share or 0.0,
    )


async def count_person(admin: AdminServices, _: Nothing, person: PersonQuery) -> Erasure:
    """Count what an erasure would remove; changes nothing."""
    return await admin.store.personal_data.count(person.email)


async def list_erasures(admin: AdminServices, _: Nothing) -> Erasures:
    """Past erasures, without the addresses, newest first."""
    return Erasures(erasures=await admin.store.personal_data.erasures(limit=ERASURES_MAX))


async def export_person(admin: AdminServices, _: Nothing, part: ExportPart) -> PersonRecords:
    """Export a person's data, in parts."""
    try:
        records = await admin.store.personal_data.records(part.email, after=part.after)
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    return PersonRecords(
        events=[event_history(event) for event in records.events],
        unreadable=[_request(kept) for kept in records.unreadable],
        mentions=records.mentions,
        views=records.views,
        watched=admin.watched(part.email) if records.next is None else (),
        next=records.next,
    )


OPERATIONS = (
    Operation("POST", "/api/v1/people/erase", erase_person),
    Operation("POST", "/api/v1/people/erase/count", count_person, audited=False),
    Operation("GET", "/api/v1/people/erasures", list_erasures),
    Operation(
        "GET",
        "/api/v1/people/erasures/{id:number}",
        show_erasure,
        {404: "There is no such erasure.", 409: "It was interrupted, and must be repeated."},
    ),
    Operation("POST", "/api/v1/people/export", export_person),
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
