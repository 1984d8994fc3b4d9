"""Unreadable requests: verified, but without a usable event."""

import base64
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Paging, Text
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.store.unreadable import UnreadableContent, UnreadableReason, UnreadableRecord

Digits = Annotated[str, Meta(pattern="^[0-9a-f]{4,64}$")]


class RequestId(msgspec.Struct, frozen=True, kw_only=True):
    """A unique prefix of an id, optionally within one source."""

    id: Digits
    source: Text | None = None


class UnreadableList(msgspec.Struct, frozen=True, kw_only=True):
    """One page, newest first."""

    unreadable: Sequence[UnreadableRecord]
    next: int | None


class UnreadableReasons(msgspec.Struct, frozen=True, kw_only=True):
    """All unreadable requests, counted by source and reason."""

    reasons: Sequence[UnreadableReason]


class UnreadableView(msgspec.Struct, frozen=True, kw_only=True):
    """One request in full; `headers` and `body` are None once its retention is over."""

    request: UnreadableRecord
    headers: str | None
    body: str | None
    """The body as text; invalid bytes are written as `\\xff`."""
    body_base64: str | None
    """The stored bytes."""
    is_damaged: bool
    """Whether the stored bytes differ from the received ones."""


async def list_unreadable(admin: AdminServices, page: Paging) -> UnreadableList:
    """Unreadable requests, newest first."""
    requests = await admin.store.unreadable.newest(before=page.before, limit=page.limit + 1)
    shown, more = requests[: page.limit], len(requests) > page.limit
    return UnreadableList(unreadable=shown, next=shown[-1].seq if more else None)


async def count_unreadable(admin: AdminServices, _: Nothing) -> UnreadableReasons:
    """Unreadable requests, counted by source and reason."""
    return UnreadableReasons(reasons=await admin.store.unreadable.reasons())


async def show_unreadable(admin: AdminServices, path: RequestId) -> UnreadableView:
    """One unreadable request with headers and body."""
    content = await _one(admin, path)
    body = content.body
    return UnreadableView(
        request=content.request,
        headers=None if content.headers is None else content.headers.decode("latin-1"),
        body=None if body is None else body.decode(errors="backslashreplace"),
        body_base64=None if body is None else base64.b64encode(body).decode(),
        is_damaged=content.is_damaged,
    )


async def discard_unreadable(admin: AdminServices, path: RequestId) -> UnreadableRecord:
    """Discard one unreadable request."""
    content = await _one(admin, path)
    await admin.store.unreadable.discard(content.request)
    return content.request


async def _one(admin: AdminServices, path: RequestId) -> UnreadableContent:
    matches = await admin.store.unreadable.find(path.id, source=path.source, limit=2)
    if not matches:
        raise HTTPException(404, f"There is no unreadable request {path.id}.")
    if len(matches) > 1:
        raise HTTPException(
            409, f"Several unreadable requests match {path.id}; give more digits, or the source."
        )
    return matches[0]


_MISSING = {404: "There is no such request.", 409: "Several requests match."}

OPERATIONS = (
    Operation("GET", "/api/v1/unreadable", list_unreadable),
    Operation("GET", "/api/v1/unreadable/reasons", count_unreadable),
    Operation("GET", "/api/v1/unreadable/{id}", show_unreadable, _MISSING),
    Operation("POST", "/api/v1/unreadable/{id}/discard", discard_unreadable, _MISSING),
)
