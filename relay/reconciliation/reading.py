"""Reads the sender's lists of views and videos, and finds where the next run may begin.

A run gives back the kinds of events that the endpoint receives, or fewer.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from relay.core.event import SUBSCRIBABLE
from relay.reconciliation.period import Period
from relay.reconciliation.views import ViewsRead
from relay.store.reconstructions import ReadPosition
from relay.video_service.api.client import Api
from relay.video_service.api.errors import Reason, ServiceApiError
from relay.video_service.api.records import SessionPage, Video, Webhook

ReportProgress = Callable[[str, int, int], None]
"""Called with the name of a step, the number of items done, and their total, 0 if unknown."""


_OF_THE_PATH: Collection[Reason] = ("no access", "not found", "request refused", "broken answer")
"""The key may not see endpoints, or the API has them elsewhere: the rest of it may work."""


class EndpointSubscription(msgspec.Struct, frozen=True):
    """The kinds that an endpoint receives; all of them where that is not known."""

    kinds: frozenset[str]
    unknown: str | None = None
    """Why they are not known."""


class Endpoints(Protocol):
    """The part of an API's client that is asked."""

    async def webhooks(self) -> Sequence[Webhook]: ...

    async def webhook(self, endpoint: str) -> Webhook: ...


class ViewsFrom(msgspec.Struct, frozen=True):
    """The views that were read."""

    read: ViewsRead
    is_whole: bool
    """Whether they are all views, from the first one on."""
    place: ReadPosition | None
    """Where the next run may begin: every view before it was over before the horizon."""


async def subscription(api: Endpoints, endpoint: str | None) -> EndpointSubscription:
    """Ask what the endpoint receives; without its id, what any does. Raises ServiceApiError."""
    everything = frozenset(SUBSCRIBABLE)
    try:
        endpoints = await api.webhooks() if endpoint is None else (await api.webhook(endpoint),)
    except ServiceApiError as error:
        if error.reason not in _OF_THE_PATH:
            raise
        return EndpointSubscription(everything, str(error))
    if not endpoints:
        return EndpointSubscription(everything, "the API lists no endpoint")
    if any(each.events is None for each in endpoints):
        return EndpointSubscription(everything, "the API does not say them")
    if any(not each.events for each in endpoints):
        return EndpointSubscription(everything)
    return EndpointSubscription(frozenset(kind for each in endpoints for kind in each.events or ()))


async def views(
    api: Api,
    period: Period,
    *,
    kinds: Collection[str] = SUBSCRIBABLE,
    place: ReadPosition | None,
    report_progress: ReportProgress,
) -> ViewsFrom:
    """Read the views from a place on, or from the first one if the place is of no use.

    Only people of the period are kept in memory. Who they are is known at the end of the list, so
    views that were over before the period are read a second time. Raises ServiceApiError.
    """
    usable = place is not None and place.at_ms <= period.since_ms
    first = after = begin = place.after if place is not None and usable else None
    read, is_settled = ViewsRead(kinds), True
    async for page in api.sessions(after=after):
        if is_settled:
            begin = after
        # In a thread, as a page takes milliseconds that acknowledgements would wait.
        is_settled = await asyncio.to_thread(read.add, page.sessions, period) and is_settled
        report_progress("views read", read.views, 0)
        if _is_past(page, period.horizon_ms):
            break
        after = page.next
    if read.earlier and read.histories:
        await _add_earlier(api, read, period, after=first, report_progress=report_progress)
    next_place = None if begin is None else ReadPosition(begin, period.horizon_ms)
    return ViewsFrom(read, is_whole=not usable, place=next_place)


async def _add_earlier(
    api: Api, read: ViewsRead, period: Period, *, after: str | None, report_progress: ReportProgress
) -> None:
    """Add the views before the period of those who are known by now."""
    seen = 0
    async for page in api.sessions(after=after):
        await asyncio.to_thread(read.add_earlier, page.sessions, period)
        seen += len(page.sessions)
        report_progress("earlier views read", seen, 0)
        if _is_past(page, period.since_ms):
            break


async def videos(api: Api, *, report_progress: ReportProgress) -> list[Video]:
    """Read the whole list of videos; raises ServiceApiError."""
    listed = []
    async for video in api.videos():
        listed.append(video)
        report_progress("videos read", len(listed), 0)
    return listed


def _is_past(page: SessionPage, end_ms: int) -> bool:
    """Whether all views of a page, and so of the following ones, began after a time."""
    begins = [view.started_ms for view in page.sessions]
    return bool(begins) and all(ms is not None and ms >= end_ms for ms in begins)
