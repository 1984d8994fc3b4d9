"""The audience as CSV files, the same as `relay audience --csv` prints."""

from collections.abc import AsyncIterator

from relay.admin.api.audience import GROUPS_MAX, show_audience
from relay.admin.page.downloads import Rows
from relay.admin.page.view import CsvTable
from relay.admin.page.views.audience.range import AudienceForm, days_of, filter_of
from relay.admin.page.visit import PageVisit
from relay.store.audience import STEPS, Funnel, Grouping, csv_rows


async def export_videos(visit: PageVisit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of videos."""
    yield await _table(visit, form, "video")


async def export_days(visit: PageVisit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of days, newest first."""
    yield await _table(visit, form, "day")


async def export_hours(visit: PageVisit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of hours of the day."""
    yield await _table(visit, form, "hour")


async def export_funnel(visit: PageVisit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the steps in total."""
    funnel = await _counted(visit, form, "video", 1)
    head = ["step", "people", "events", "events without an address"]
    rows = zip(STEPS, funnel.total, strict=True)
    yield [head, *([name, each.people, each.events, each.anonymous] for name, each in rows)]


async def _table(visit: PageVisit, form: AudienceForm, by: Grouping) -> Rows:
    """Read the table of `relay audience --csv`; its last row counts any rows left out."""
    funnel = await _counted(visit, form, by, GROUPS_MAX)
    rows = csv_rows(by, funnel, visit.text)
    if funnel.left_out:
        rows.append([f"{funnel.left_out} more are left out: choose fewer days, or a source."])
    return rows


async def _counted(visit: PageVisit, form: AudienceForm, by: Grouping, limit: int) -> Funnel:
    query = filter_of(form, days_of(form, visit.now_ms), by, limit)
    funnel: Funnel = await visit.run(show_audience, query)
    return funnel


ROUTES = (
    CsvTable("/audience/videos.csv", export_videos, "videos.csv"),
    CsvTable("/audience/days.csv", export_days, "days.csv"),
    CsvTable("/audience/hours.csv", export_hours, "hours.csv"),
    CsvTable("/audience/funnel.csv", export_funnel, "funnel.csv"),
)
