"""Unreadable requests: verified, but without a usable event."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api import unreadable as api
from relay.admin.api.parameters import Limit, Number, Text
from relay.admin.operation import Nothing
from relay.admin.page.filter_bar import SINCE, UNTIL, Field, Time, filter_bar, moment, same
from relay.admin.page.lists import ListPage
from relay.admin.page.view import Action, PageView
from relay.admin.page.visit import ActionResult, Context, Notice, PageVisit
from relay.core.units import number

SHOWN_MAX = 64 * 1024
"""Characters of a body on the page."""

WORD = "discard"
"""The word to type: no request comes back."""


class RequestFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter, with times as people type them."""

    source: Text | None = None
    reason: Text | None = None
    since: Time | None = None
    until: Time | None = None

    def filter(self, visit: PageVisit) -> api.UnreadableFilter:
        """Convert to the API's filter; raises HTTPException."""
        visit.check_filter(self.source, self.reason)
        return api.UnreadableFilter(
            source=self.source,
            reason=self.reason,
            since_ms=moment("From", self.since, visit.now_ms),
            until_ms=moment("Until", self.until, visit.now_ms),
        )

    @property
    def given(self) -> dict[str, str]:
        values = {name: getattr(self, name) for name in RequestFilter.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class RequestPage(RequestFilter, frozen=True, kw_only=True):
    """One page of the list."""

    before: Number | None = None
    limit: Limit = 50


class ConfirmedFilter(RequestFilter, frozen=True, kw_only=True):
    """The filter, and the typed confirmation."""

    word: Text = ""


class PathId(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    id: api.Digits


class OfSource(msgspec.Struct, frozen=True, kw_only=True):
    """The source that received it."""

    source: Text


class Confirmed(OfSource, frozen=True, kw_only=True):
    """The typed confirmation."""

    word: Text = ""


async def read_list(visit: PageVisit, page: RequestPage) -> Context:
    """Read a page of unreadable requests, with their reasons."""
    chosen = page.filter(visit)
    wanted = api.UnreadablePage(**asdict(chosen), before=page.before, limit=page.limit)
    shown = await read_requests(visit, wanted)
    reasons = (await visit.run(api.count_unreadable, chosen)).reasons
    return {
        "filters": filter_bar(visit, _fields(visit, page)),
        "given": page.given,
        "count": sum(each.count for each in reasons),
        "word": WORD,
        "unreadable": shown.response.unreadable,
        "requests": shown.attributes,
        "next": shown.response.next,
        "before": page.before,
        "unreadable_reasons": reasons,
    }


def _fields(visit: PageVisit, chosen: RequestFilter) -> Sequence[Field]:
    sources = same(visit.admin.sources)
    return (
        Field(name="source", label="Source", value=chosen.source, choices=sources),
        Field(name="reason", label="Reason contains", value=chosen.reason),
        Field(name="since", label="From (UTC)", value=chosen.since, hint=SINCE),
        Field(name="until", label="Until (UTC)", value=chosen.until, hint=UNTIL),
    )


async def read_requests(visit: PageVisit, page: api.UnreadablePage) -> ListPage:
    return await visit.page(
        api.list_unreadable, page, rows="unreadable", position="seq", name="requests"
    )


async def read_one(visit: PageVisit, path: api.RequestId) -> Context:
    record = await visit.run(api.show_unreadable, path)
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


async def retry(visit: PageVisit, path: PathId, chosen: OfSource) -> ActionResult:
    """Accept the event of one request, if it has one by now."""
    request = api.RequestId(id=path.id, source=chosen.source)
    result = await visit.run(api.retry_unreadable, request)
    is_over = result.accepted or result.duplicates
    return ActionResult(to=visit.url("/unreadable") if is_over else None, notice=_retried(result))


async def retry_all(visit: PageVisit, _: Nothing, chosen: RequestFilter) -> ActionResult:
    """Accept the events of all requests that the filter selects, if they have one by now."""
    order = api.UnreadableOrder(**asdict(chosen.filter(visit)), all=True)
    return ActionResult(
        notice=_retried(await visit.run(api.retry_unreadable_requests, Nothing(), order))
    )


def _retried(result: api.Retried) -> Notice:
    parts = [f"{number(count)} {words}" for count, words in _parts(result) if count]
    kept = result.conflicts + result.unreadable + result.lost
    text = "; ".join(parts) or "There is no such request any more"
    return Notice(text=f"{text}.", tone="warn" if kept or not parts else "ok")


def _parts(result: api.Retried) -> Sequence[tuple[int, str]]:
    return (
        (result.accepted, "accepted"),
        (result.duplicates, "known already, and removed"),
        (result.conflicts, "kept, because the event is known with another body"),
        (result.unreadable, "kept, because there is still no usable event"),
        (result.lost, "kept, because the body is gone or damaged"),
    )


async def discard_all(visit: PageVisit, _: Nothing, confirmed: ConfirmedFilter) -> ActionResult:
    """Discard all requests that the filter selects, for good."""
    _require_word(confirmed.word)
    order = api.UnreadableDiscard(**asdict(confirmed.filter(visit)), all=True)
    result = await visit.run(api.discard_unreadable_requests, Nothing(), order)
    return ActionResult(notice=Notice(text=f"{number(result.discarded)} discarded."))


async def discard(visit: PageVisit, path: PathId, confirmed: Confirmed) -> ActionResult:
    """Discard one request for good."""
    _require_word(confirmed.word)
    request = await visit.run(
        api.discard_unreadable, api.RequestId(id=path.id, source=confirmed.source)
    )
    text = f"The request {request.id[:12]} is discarded."
    return ActionResult(to=visit.url("/unreadable"), notice=Notice(text=text))


def _require_word(word: str) -> None:
    if word.strip().lower() != WORD:
        raise HTTPException(422, f"Nothing was discarded: type {WORD} to confirm.")


ROUTES = (
    PageView(
        "/unreadable",
        read_list,
        "Unreadable requests",
        "unreadable.html",
        topics=("events", "changes"),
    ),
    PageView(
        "/unreadable/{id}",
        read_one,
        "Unreadable request",
        "unreadable_request.html",
        admin_only=True,
    ),
    Action("/unreadable/retry", retry_all),
    Action("/unreadable/discard", discard_all),
    Action("/unreadable/{id}/retry", retry),
    Action("/unreadable/{id}/discard", discard),
)
