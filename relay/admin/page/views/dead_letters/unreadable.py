"""Unreadable requests: verified, but without a usable event."""

from functools import partial

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Paging, Text
from relay.admin.api.unreadable import (
    Digits,
    RequestId,
    count_unreadable,
    discard_unreadable,
    list_unreadable,
    show_unreadable,
)
from relay.admin.operation import Nothing
from relay.admin.page.lists import Listed, ListReader
from relay.admin.page.view import Action, View
from relay.admin.page.visit import Context, Done, Notice, Visit

SHOWN_MAX = 64 * 1024
"""Characters of a body on the page."""

WORD = "discard"
"""The word to type: no request comes back."""


class PathId(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    id: Digits


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The typed confirmation."""

    source: Text
    word: Text = ""


async def read_list(visit: Visit, paging: Paging) -> Context:
    """Read a page of unreadable requests, with their reasons."""
    shown = await read_requests(visit, paging)
    return {
        "unreadable": shown.response.unreadable,
        "requests": shown.attributes,
        "next": shown.response.next,
        "before": paging.before,
        "unreadable_reasons": (await visit.run(count_unreadable, Nothing())).reasons,
    }


async def read_requests(visit: Visit, paging: Paging) -> Listed:
    """Read a page of unreadable requests."""
    reader = ListReader(partial(visit.run, list_unreadable), "unreadable", "seq")
    return await reader.page(visit.held, "requests", paging)


async def read_one(visit: Visit, path: RequestId) -> Context:
    """Read one unreadable request."""
    record = await visit.run(show_unreadable, path)
    headers = [line.partition(": ") for line in (record.headers or "").splitlines()]
    return {
        "request": record.request,
        "headers": [(name, value) for name, _, value in headers],
        "body": None if record.body is None else record.body[:SHOWN_MAX],
        "is_cut": record.body is not None and len(record.body) > SHOWN_MAX,
        "is_damaged": record.is_damaged,
        "command": f"relay unreadable show {path.id[:12]} --source {record.request.source}",
        "word": WORD,
    }


async def discard(visit: Visit, path: PathId, confirmed: Confirmed) -> Done:
    """Discard one request for good."""
    if confirmed.word.strip().lower() != WORD:
        raise HTTPException(422, f"Nothing was discarded: type {WORD} to confirm.")
    request = await visit.run(discard_unreadable, RequestId(id=path.id, source=confirmed.source))
    text = f"The request {request.id[:12]} is discarded."
    return Done(to=visit.url("/unreadable"), notice=Notice(text=text))


VIEWS = (
    View(
        path="/unreadable",
        title="Unreadable requests",
        template="unreadable.html",
        read=read_list,
        topics=("events", "changes"),
    ),
    View(
        path="/unreadable/{id}",
        title="Unreadable request",
        template="unreadable_request.html",
        read=read_one,
        admin_only=True,
    ),
)

ACTIONS = (Action(path="/unreadable/{id}/discard", perform=discard),)
