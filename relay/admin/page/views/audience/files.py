"""The audience as CSV files, the same as `relay audience --csv` prints."""

from collections.abc import AsyncIterator, Sequence

from relay.admin.api.audience import GROUPS_MAX, show_audience
from relay.admin.page.downloads import Rows
from relay.admin.page.view import Table
from relay.admin.page.views.audience.range import AudienceForm, days_of, filter_of
from relay.admin.page.visit import Visit
from relay.store.audience import Funnel, Grouping

COLUMNS = ("started", "25%", "50%", "75%", "completed", "lead")


async def export_videos(visit: Visit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of videos."""
    funnel = await _counted(visit, form, "video", GROUPS_MAX)
    names = [[visit.text(each.title), visit.text(each.video)] for each in funnel.groups]
    yield _table(["title", "video"], names, funnel)


async def export_days(visit: Visit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of days, newest first."""
    funnel = await _counted(visit, form, "day", GROUPS_MAX)
    yield _table(["day"], [[each.day] for each in funnel.groups], funnel)


async def export_hours(visit: Visit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the table of hours of the day."""
    funnel = await _counted(visit, form, "hour", GROUPS_MAX)
    yield _table(["hour"], [[each.hour] for each in funnel.groups], funnel)


async def export_funnel(visit: Visit, form: AudienceForm) -> AsyncIterator[Rows]:
    """Read the steps in total."""
    funnel = await _counted(visit, form, "video", 1)
    head = ["step", "people", "events", "events without an address"]
    rows = zip(COLUMNS, funnel.total, strict=True)
    yield [head, *([name, each.people, each.events, each.anonymous] for name, each in rows)]


def _table(
    heads: Sequence[str], names: Sequence[Sequence[object]], funnel: Funnel
) -> list[Sequence[object]]:
    """Build the table of `relay audience --csv`; its last row counts any rows left out."""
    units = ("people", "events")
    table: list[Sequence[object]] = [
        [*heads, *(f"{step} {unit}" for unit in units for step in COLUMNS)]
    ]
    for cells, group in zip(names, funnel.groups, strict=True):
        table.append([*cells, *(getattr(step, unit) for unit in units for step in group.steps)])
    if funnel.left_out:
        table.append([f"{funnel.left_out} more are left out: choose fewer days, or a source."])
    return table


async def _counted(visit: Visit, form: AudienceForm, by: Grouping, limit: int) -> Funnel:
    query = filter_of(form, days_of(form, visit.now_ms), by, limit)
    funnel: Funnel = await visit.run(show_audience, query)
    return funnel


TABLES = (
    Table(path="/audience/videos.csv", file="videos.csv", read=export_videos),
    Table(path="/audience/days.csv", file="days.csv", read=export_days),
    Table(path="/audience/hours.csv", file="hours.csv", read=export_hours),
    Table(path="/audience/funnel.csv", file="funnel.csv", read=export_funnel),
)
