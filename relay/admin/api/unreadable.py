"""Verified requests that hold no usable event: a list, one of them whole, and its removal."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Paging, Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.unreadable import UnreadableContent, UnreadableRecord

Digits = Annotated[str, Meta(pattern="^[0-9a-f]{4,64}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The beginning of an id that no other request has, at this source if one is named."""

    id: Digits
    source: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableList:
    """One page, the newest first."""

    unreadable: Sequence[UnreadableRecord]
    next: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableView:
    """One request whole; `headers` and `body` are None once its retention is over."""

    request: UnreadableRecord
    headers: str | None
    body: str | None
    """As text; bytes that are none are written as `\\xff`."""
    body_base64: str | None
    """The received bytes."""
    is_damaged: bool
    """Whether they are others than were received."""


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of unreadable requests, and done to them."""

    async def one(which: Which) -> UnreadableContent:
        found = await admin.unreadable.find(which.id, source=which.source, limit=2)
        if not found:
            raise HTTPException(404, f"There is no unreadable request {which.id}.")
        if len(found) > 1:
            raise HTTPException(
                409, f"Several unreadable requests fit {which.id}: give more digits, or the source."
            )
        return found[0]

    async def list_unreadable(page: Paging) -> UnreadableList:
        found = await admin.unreadable.newest(before=page.before, limit=page.limit)
        more = len(found) == page.limit
        return UnreadableList(unreadable=found, next=found[-1].seq if more else None)

    async def show_unreadable(which: Which) -> UnreadableView:
        found = await one(which)
        body = found.body
        return UnreadableView(
            request=found.request,
            headers=None if found.headers is None else found.headers.decode("latin-1"),
            body=None if body is None else body.decode(errors="backslashreplace"),
            body_base64=None if body is None else base64.b64encode(body).decode(),
            is_damaged=found.is_damaged,
        )

    async def discard_unreadable(which: Which) -> UnreadableRecord:
        found = await one(which)
        await admin.unreadable.discard(found.request)
        return found.request

    problems = {404: "There is no such request.", 409: "Several requests fit."}
    return (
        Operation(
            method="GET",
            path="/api/v1/unreadable",
            summary="Verified requests that hold no usable event, the newest first.",
            handler=list_unreadable,
            parameters=Paging,
            answer=UnreadableList,
        ),
        Operation(
            method="GET",
            path="/api/v1/unreadable/{id}",
            summary="One of them with its headers and its body.",
            handler=show_unreadable,
            parameters=Which,
            answer=UnreadableView,
            problems=problems,
        ),
        Operation(
            method="POST",
            path="/api/v1/unreadable/{id}/discard",
            summary="Remove one of them for good.",
            handler=discard_unreadable,
            parameters=Which,
            answer=UnreadableRecord,
            problems=problems,
        ),
    )
