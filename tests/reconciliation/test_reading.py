"""Which views a run keeps in memory, and how often it reads the list of them."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from relay.reconciliation import reading
from relay.reconciliation.period import Period
from relay.store.reconstructions import ReadPosition
from relay.video_service.api.records import Session, SessionPage
from tests.conftest import NOW_MS

HOUR_MS = 3_600_000
SINCE_MS = NOW_MS - 10 * HOUR_MS
PERIOD = Period.of(since_ms=SINCE_MS, until_ms=NOW_MS, now_ms=NOW_MS, returned_ms=0)
PER_PAGE = 10


class ListedViews:
    """The list of views as the API gives it, page by page."""

    def __init__(self, views: Sequence[Session]) -> None:
        self._views = views
        self.pages_read = 0

    async def sessions(self, *, after: str | None = None) -> AsyncGenerator[SessionPage, None]:
        start = 0 if after is None else int(after)
        for begin in range(start, len(self._views), PER_PAGE):
            self.pages_read += 1
            end = begin + PER_PAGE
            following = str(end) if end < len(self._views) else None
            yield SessionPage(sessions=tuple(self._views[begin:end]), next=following)


def view(person: int, hours: float, percent: float = 30) -> Session:
    """A view of ten minutes that began this many hours after the period's begin."""
    started_ms = SINCE_MS + round(hours * HOUR_MS)
    return Session(
        video_id="vid_1",
        email=f"viewer{person}@example.com",
        started_ms=started_ms,
        ended_ms=started_ms + 600_000,
        percent=percent,
    )


async def read(api: Any, *, place: ReadPosition | None = None) -> reading.ViewsFrom:
    return await reading.views(api, PERIOD, place=place, report_progress=lambda *_: None)


async def test_only_people_of_the_period_are_kept() -> None:
    earlier = [view(number, number / 100 - 20) for number in range(200)]
    api = ListedViews([*earlier, view(7, 1), view(300, 2)])
    found = (await read(api)).read
    assert {history.email for history in found.histories.values()} == {
        "viewer7@example.com",
        "viewer300@example.com",
    }
    assert (found.views, found.earlier) == (202, 200)


async def test_views_before_the_period_count_for_its_people() -> None:
    api = ListedViews([view(1, -5, 20), view(2, -4), view(1, -3, 60), view(1, 1, 10)])
    (history,) = (await read(api)).read.histories.values()
    assert (history.before.count, history.before.low) == (2, 60)
    assert history.within.count == 1


async def test_a_view_that_lasted_into_the_period_is_counted_once() -> None:
    api = ListedViews([view(1, -5, 20), view(1, -0.1, 40)])
    (history,) = (await read(api)).read.histories.values()
    assert (history.before.count, history.within.count) == (1, 1)


async def test_the_second_reading_ends_where_the_period_begins() -> None:
    earlier = [view(1, number / 100 - 20) for number in range(20)]
    api = ListedViews([*earlier, *(view(1, number / 100) for number in range(50))])
    await read(api)
    assert api.pages_read == 7 + 3


@pytest.mark.parametrize("place", [None, ReadPosition("10", SINCE_MS)])
async def test_views_of_the_period_alone_are_read_once(place: ReadPosition | None) -> None:
    api = ListedViews([view(number, number / 10) for number in range(30)])
    await read(api, place=place)
    assert api.pages_read == (3 if place is None else 2)


async def test_the_reading_ends_where_the_period_ends() -> None:
    api = ListedViews([view(number, number / 2) for number in range(60)])
    assert (await read(api)).read.views == 30
    assert api.pages_read == 3


async def test_the_next_run_begins_at_the_page_of_the_first_view_that_may_go_on() -> None:
    views = [view(number, number / 10) for number in range(50)]
    views[25] = replace(views[25], ended_ms=None)
    found = await read(ListedViews(views))
    assert found.place == ReadPosition("20", PERIOD.horizon_ms)


async def test_the_second_reading_begins_at_the_place_of_the_run_before() -> None:
    old = [view(1, number / 100 - 200, 80) for number in range(10)]
    api = ListedViews([*old, view(1, -2, 20), view(1, 1, 10)])
    found = await read(api, place=ReadPosition("10", SINCE_MS - 3 * HOUR_MS))
    (history,) = found.read.histories.values()
    assert (history.before.count, history.before.low) == (1, 20)
    assert not found.is_whole
