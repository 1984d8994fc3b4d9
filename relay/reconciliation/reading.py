"""Reads the sender's lists of views and videos, and finds where the next run may begin."""

from collections.abc import Callable
from dataclasses import dataclass

from relay.reconciliation.period import Period
from relay.reconciliation.views import ViewsRead
from relay.store.reconstructions import Place
from relay.video_service.api.client import Api
from relay.video_service.api.records import SessionPage, Video

Told = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is, 0 if unknown."""


@dataclass(frozen=True, slots=True)
class ViewsFrom:
    """The views that were read."""

    read: ViewsRead
    is_whole: bool
    """Whether they are all views, from the first one on."""
    place: Place | None
    """Where the next run may begin: every view before it was over before the horizon."""


async def views(api: Api, period: Period, *, place: Place | None, told: Told) -> ViewsFrom:
    """Read the views from a place on, or from the first one if the place is of no use.

    Raises ApiError.
    """
    usable = place is not None and place.at_ms <= period.since_ms
    after = begin = place.after if place is not None and usable else None
    read, is_settled = ViewsRead(), True
    async for page in api.sessions(after=after):
        if is_settled:
            begin = after
        is_settled = read.add(page.sessions, period) and is_settled
        told("views", read.views, 0)
        if _is_past(page, period):
            break
        after = page.next
    next_place = None if begin is None else Place(begin, period.horizon_ms)
    return ViewsFrom(read, is_whole=not usable, place=next_place)


async def videos(api: Api, *, told: Told) -> list[Video]:
    """Read the whole list of videos; raises ApiError."""
    listed = []
    async for video in api.videos():
        listed.append(video)
        told("videos", len(listed), 0)
    return listed


def _is_past(page: SessionPage, period: Period) -> bool:
    """Whether all views of a page, and so of the following ones, began after the horizon."""
    begins = [view.started_ms for view in page.sessions]
    return bool(begins) and all(ms is not None and ms >= period.horizon_ms for ms in begins)
