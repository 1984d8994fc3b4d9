"""The search field: finds events by id, address, video or words."""

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.events import EventList, IdPrefix, Listing, find_events, list_events
from relay.admin.api.parameters import Filter
from relay.admin.operation import Nothing
from relay.admin.page.view import Action
from relay.admin.page.visit import ActionResult, Notice, PageVisit
from relay.core import addresses
from relay.store.events import EventRecord

FIND_MS = 500
"""Time limit of each search for the entered text."""


NOT_BY_ADDRESS = "Viewers cannot search by address."

TEXT_MAX = 320
"""Characters of the longest address, id or phrase."""


class SearchForm(msgspec.Struct, frozen=True, kw_only=True):
    """An id, address, video or words."""

    text: str | None = None


async def search(visit: PageVisit, _: Nothing, form: SearchForm) -> ActionResult:
    """Go to the event with an id, else to those of a person, of a video, or with the words."""
    text = (form.text or "").strip()
    if not text:
        return ActionResult(to=visit.url("/events"))
    if len(text) > TEXT_MAX:
        raise HTTPException(400, f"This is too long to search for: {TEXT_MAX} characters at most.")
    if addresses.AT.search(text):
        visit.require_admin(NOT_BY_ADDRESS)
    if (address := addresses.ADDRESS.search(text)) is not None:
        return await _find_person(visit, addresses.plain(address[0]))
    candidates = await _with_id(visit, text)
    if len(candidates) == 1:
        return ActionResult(to=visit.url(f"/events/{candidates[0].seq}"))
    if candidates:
        return ActionResult(to=visit.url("/events", id=text))
    tried = {"video": Filter(video=text)}
    if visit.may_change:
        tried["words"] = Filter(words=text)
    looked_back = True
    for name, chosen in tried.items():
        result = await _first(visit, chosen)
        if result.events:
            return ActionResult(to=visit.url("/events", **{name: text}))
        looked_back = looked_back and result.looked_to_ms is None
    return ActionResult(
        to=visit.url("/events"), notice=_nothing(text, list(tried), whole=looked_back)
    )


async def _with_id(visit: PageVisit, text: str) -> Sequence[EventRecord]:
    """Find events by the beginning of their id; for a viewer, by the whole id.

    By beginnings, a viewer could spell out an address in an id that is hidden.
    """
    found: EventList = await visit.run(find_events, IdPrefix(beginning=text))
    return [event for event in found.events if visit.may_change or event.id == text]


async def _find_person(visit: PageVisit, address: str) -> ActionResult:
    person = visit.admin.store.audience.person(address)
    result = await _first(visit, Filter(person=person))
    notice = None
    if not result.events and result.looked_to_ms is None:
        notice = Notice(text="No stored event is of this person.", tone="warn")
    return ActionResult(to=visit.url("/events", person=person), notice=notice)


async def _first(visit: PageVisit, chosen: Filter) -> EventList:
    listing = chosen.extended(Listing, limit=1, within_ms=FIND_MS)
    result: EventList = await visit.run(list_events, listing)
    return result


def _nothing(text: str, tried: Sequence[str], *, whole: bool) -> Notice:
    """Explain a search without results."""
    places = {"video": "the id of a video", "words": "words in a body"}
    names = ", ".join(["the beginning of an id", *(places[name] for name in tried)])
    rest = "" if whole else " The newest events were looked at; filter to look further back."
    return Notice(text=f"Nothing found for “{text}”, tried as {names}.{rest}", tone="warn")


ROUTE = Action("/find", search, is_reading=True)
