"""Unreadable requests: verified, but without a usable event."""

import asyncio
import base64
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Self

import msgspec
from msgspec import Meta
from msgspec.structs import astuple, replace
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Limit, Number, Text, nothing_selected, require_known
from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.core.event import Unreadable
from relay.store.unreadable import (
    UnreadableContent,
    UnreadableReason,
    UnreadableRecord,
    UnreadableSelection,
)

STEP_ROWS = 500
"""Requests discarded at once."""

RETRIES_MAX = 16
"""Requests retried at once, with their bodies in memory; they share a commit."""

Digits = Annotated[str, Meta(pattern="^[0-9a-f]{4,64}$")]


class RequestId(msgspec.Struct, frozen=True, kw_only=True):
    """A unique prefix of an id, optionally within one source."""

    id: Digits
    source: Text | None = None


class UnreadableFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the requests that match every given field."""

    source: Text | None = None
    reason: Text | None = None
    """A part of the reason."""
    since_ms: Number | None = None
    until_ms: Number | None = None


class UnreadablePage(UnreadableFilter, frozen=True, kw_only=True):
    """One page of a filtered list."""

    before: Number | None = None
    limit: Limit = 50


class UnreadableOrder(UnreadableFilter, frozen=True, kw_only=True):
    """A filter for a change; without any field, `all` is required."""

    all: bool = False


class UnreadableDiscard(UnreadableOrder, frozen=True, kw_only=True):
    """Selects requests to discard; `dry_run` only counts them."""

    dry_run: bool = False


class UnreadableDiscarded(msgspec.Struct, frozen=True, kw_only=True):
    """Number of discarded requests, and the selection by source and reason."""

    discarded: int
    reasons: Sequence[UnreadableReason]


class Retried(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of the selected requests, counted."""

    accepted: int = 0
    """Requests whose event is new; they are unreadable no longer."""
    duplicates: int = 0
    """Requests whose event was known; they are unreadable no longer."""
    conflicts: int = 0
    """Requests whose event is known with another body; they stay."""
    unreadable: int = 0
    """Requests that hold no usable event even now; they stay."""
    lost: int = 0
    """Requests without a body, or with a damaged one; they stay."""

    def plus(self, other: Self) -> Self:
        """Return the sums."""
        ours, theirs = astuple(self), astuple(other)
        names = self.__struct_fields__
        return type(self)(**{n: a + b for n, a, b in zip(names, ours, theirs, strict=True)})


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


async def list_unreadable(admin: AdminServices, page: UnreadablePage) -> UnreadableList:
    """Unreadable requests, newest first."""
    selection = replace(await _selected(admin, page), before=page.before)
    requests = await admin.store.unreadable.newest(selection, limit=page.limit + 1)
    shown, more = requests[: page.limit], len(requests) > page.limit
    return UnreadableList(unreadable=shown, next=shown[-1].seq if more else None)


async def count_unreadable(admin: AdminServices, chosen: UnreadableFilter) -> UnreadableReasons:
    """Unreadable requests, counted by source and reason."""
    selection = await _selected(admin, chosen)
    return UnreadableReasons(reasons=await admin.store.unreadable.reasons(selection))


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
    await admin.store.unreadable.discard([content.request])
    return content.request


async def discard_unreadable_requests(
    admin: AdminServices, _: Nothing, order: UnreadableDiscard
) -> UnreadableDiscarded:
    """Discard the selected unreadable requests."""
    selection = await _ordered(admin, order)
    reasons = await admin.store.unreadable.reasons(selection)
    discarded = 0
    while not order.dry_run and (
        requests := await admin.store.unreadable.newest(selection, limit=STEP_ROWS)
    ):
        await admin.store.unreadable.discard(requests)
        discarded += len(requests)
    return UnreadableDiscarded(discarded=discarded, reasons=reasons)


async def retry_unreadable(admin: AdminServices, path: RequestId) -> Retried:
    """Accept the event of one unreadable request, if it has one by now."""
    return await _retry(admin, [await _one(admin, path)])


async def retry_unreadable_requests(
    admin: AdminServices, _: Nothing, order: UnreadableOrder
) -> Retried:
    """Accept the events of the selected unreadable requests that have one by now."""
    selection = await _ordered(admin, order)
    total, after = Retried(), 0
    while requests := await admin.store.unreadable.contents(
        selection, after=after, limit=RETRIES_MAX
    ):
        after = requests[-1].request.seq
        total = total.plus(await _retry(admin, requests))
    return total


async def _retry(admin: AdminServices, requests: Sequence[UnreadableContent]) -> Retried:
    kept = {}
    for content in requests:
        if content.body is not None and not content.is_damaged:
            kept[content.request.seq] = content
    outcomes = await asyncio.gather(*(admin.intake.retry(_kept(each)) for each in kept.values()))
    counts = Counter(outcomes)
    # Stored by now. After a crash in between they are duplicates when they are retried again.
    known = [
        content.request
        for content, outcome in zip(kept.values(), outcomes, strict=True)
        if outcome in {"accepted", "duplicate"}
    ]
    if known:
        await admin.store.unreadable.discard(known)
    return Retried(
        accepted=counts["accepted"],
        duplicates=counts["duplicate"],
        conflicts=counts["conflict"],
        unreadable=counts["unreadable"],
        lost=len(requests) - len(kept),
    )


def _kept(content: UnreadableContent) -> Unreadable:
    request = content.request
    return Unreadable(
        source=request.source,
        received_ms=request.received_ms,
        body=content.body or b"",
        headers=content.headers or b"",
        reason=request.reason,
    )


async def _ordered(admin: AdminServices, order: UnreadableOrder) -> UnreadableSelection:
    """Convert an order, without the requests that arrive from now on; raises HTTPException."""
    selection = await _selected(admin, order)
    if not order.all and selection == UnreadableSelection():
        raise nothing_selected("source", "reason")
    newest = await admin.store.unreadable.newest(UnreadableSelection(), limit=1)
    return replace(selection, before=newest[0].seq + 1 if newest else 0)


async def _selected(admin: AdminServices, chosen: UnreadableFilter) -> UnreadableSelection:
    """Convert a filter; raises HTTPException for an unknown source."""

    async def stored() -> Sequence[str]:
        reasons = await admin.store.unreadable.reasons(UnreadableSelection())
        return sorted({each.source for each in reasons})

    await require_known("source", chosen.source, admin.sources, stored)
    names = UnreadableFilter.__struct_fields__
    return UnreadableSelection(**{name: getattr(chosen, name) for name in names})


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

_SELECTING = {
    404: "The source is unknown; the detail lists the known ones.",
    422: "The filter is missing without `all`.",
}

OPERATIONS = (
    Operation("GET", "/api/v1/unreadable", list_unreadable, {404: _SELECTING[404]}),
    Operation("GET", "/api/v1/unreadable/reasons", count_unreadable, {404: _SELECTING[404]}),
    Operation(
        "POST",
        "/api/v1/unreadable/discard",
        discard_unreadable_requests,
        _SELECTING,
        result=lambda response: {"discarded": response.discarded},
    ),
    Operation("POST", "/api/v1/unreadable/retry", retry_unreadable_requests, _SELECTING),
    Operation("GET", "/api/v1/unreadable/{id:digest}", show_unreadable, _MISSING),
    Operation("POST", "/api/v1/unreadable/{id:digest}/discard", discard_unreadable, _MISSING),
    Operation("POST", "/api/v1/unreadable/{id:digest}/retry", retry_unreadable, _MISSING),
)
