"""Events: the newest first, filtered and counted."""

from collections.abc import AsyncIterator, Sequence
from typing import Literal

from msgspec.structs import asdict, replace
from starlette.exceptions import HTTPException

from relay.admin.api import events as api
from relay.admin.api.parameters import Filter, Number, Text
from relay.admin.operation import Nothing
from relay.admin.page.downloads import Rows
from relay.admin.page.filter_bar import filter_bar
from relay.admin.page.filters import EventFilter, api_request, command, event_fields
from relay.admin.page.first_steps import first_steps
from relay.admin.page.lists import ListPage, ListReader, unpaged
from relay.admin.page.text.formats import iso
from relay.admin.page.view import Action, CsvTable, PageView, Section
from relay.admin.page.views.events import bulk, event, replays, search
from relay.admin.page.visit import ActionResult, Context, PageVisit
from relay.store.events import EventRecord
from relay.store.search import Count

BUDGET_MS = 200
"""Time of a page's rows and their count together."""

NEWER_MS = 50
"""Time limit for counting the events that are newer than a held list."""

LONG_MS = 5000
"""Time to count if the visitor asks for a longer count."""

PART_MS = 500
"""Time to search for a part of the file."""


class EventsPage(EventFilter, frozen=True, kw_only=True):
    """One page of a filtered list."""

    before: Number | None = None
    count: Literal["long"] | None = None


class PersonForm(EventFilter, frozen=True, kw_only=True):
    """An address, and the filter that it is added to."""

    address: Text


async def read_events(visit: PageVisit, page: EventsPage) -> Context:
    """Read a page of events and the number of all that match."""
    clock = visit.admin.clock
    ends_s = clock.monotonic() + BUDGET_MS / 1000
    fault, count, chosen = None, None, Filter()
    shown = ListPage(api.EventList(events=(), next=None), unpaged("rows"))
    try:
        chosen = await page.filter(visit)
        listing = chosen.extended(api.Listing, before=page.before, within_ms=BUDGET_MS)

        async def read(wanted: api.Listing) -> api.EventList:
            return await visit.slow.get(wanted, lambda: visit.run(api.list_events, wanted))

        async def estimate(newest: int, held: int) -> tuple[int, bool]:
            if not page.given:
                return newest - held, False
            return await _newer(visit, chosen, held)

        reader = ListReader(read, "events", "seq", estimate)
        shown = await reader.page(visit.held, "rows", listing)
        left_ms = max(0, int((ends_s - clock.monotonic()) * 1000))
        within_ms = LONG_MS if page.count else left_ms
        count_key = replace(page, before=None)
        count = await visit.slow.get(("count", count_key), lambda: _count(visit, chosen, within_ms))
    except HTTPException as error:
        if error.status_code == 403:
            raise
        fault = error.detail
    return {
        "page": page,
        "filters": filter_bar(visit, event_fields(visit, page)),
        "fault": fault,
        "found": shown.response,
        "rows": shown.attributes,
        "count": count,
        "kept": {name: value for name, value in page.given.items() if name != "person"},
        "csv": visit.url("/events.csv", **page.given, before=page.before),
        "command": command(chosen, "events", "list"),
        "api": api_request(visit, "/events", **asdict(chosen)),
        "steps": () if shown.response.events else first_steps(visit),
    }


async def _newer(visit: PageVisit, chosen: Filter, held: int) -> tuple[int, bool]:
    """Count the events that match since the one with a position, for a moment."""
    history = await visit.admin.store.events.history(held)
    if history is None:
        return 0, True
    since_ms = max(chosen.since_ms or 0, history.event.received_ms)
    count = await _count(visit, replace(chosen, since_ms=since_ms), NEWER_MS)
    return count.events, not count.complete


async def _count(visit: PageVisit, chosen: Filter, within_ms: int) -> Count:
    result: Count = await visit.run(
        api.count_events, chosen.extended(api.Counting, within_ms=within_ms)
    )
    return result


async def read_table(visit: PageVisit, page: EventsPage) -> AsyncIterator[Rows]:
    heads = [("received", "source", "kind", "id", "created", "bytes", "deliveries", "mark")]
    # With a time limit the store searches in steps, between which other searches get on.
    chosen = await page.filter(visit)
    listing = chosen.extended(api.Listing, before=page.before, within_ms=PART_MS)
    async for result in visit.pages(api.list_events, listing):
        yield [*heads, *(_row(visit, event) for event in result.events)]
        heads = []


def _row(visit: PageVisit, event: EventRecord) -> Sequence[object]:
    deliveries = "; ".join(f"{each.sink} {each.status}" for each in event.deliveries)
    texts = (event.source, event.kind, event.id, event.created_at)
    mark = ("superseded" if event.superseded else "reconstructed") if event.reconstructed else ""
    return (iso(event.received_ms), *map(visit.text, texts), event.bytes, deliveries, mark)


async def filter_by_person(visit: PageVisit, _: Nothing, form: PersonForm) -> ActionResult:
    """Add a person to the filter, named by the store's digest of the address."""
    visit.require_admin(search.NOT_BY_ADDRESS)
    person = visit.admin.store.audience.person(form.address)
    return ActionResult(to=visit.url("/events", **{**form.given, "person": person}))


SECTION = Section(
    name="Events",
    path="/events",
    key="e",
    routes=(
        PageView(
            "/events",
            read_events,
            "Events",
            "events.html",
            topics=("events", "deliveries", "changes"),
        ),
        CsvTable("/events.csv", read_table, "events.csv"),
        Action("/events/person", filter_by_person, is_reading=True),
        search.ROUTE,
        *event.ROUTES,
        *bulk.ROUTES,
        *replays.ROUTES,
    ),
)
