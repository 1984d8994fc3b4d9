"""The audience as CSV files, the same as `relay audience --csv` prints."""

from collections.abc import Sequence

from relay.admin.api.audience import GROUPS_MAX, show_audience
from relay.admin.page.view import Download
from relay.admin.page.views.audience.range import Chosen, days_of, filter_of
from relay.admin.page.visit import Visit
from relay.store.audience import Funnel, Grouping

COLUMNS = ("started", "25%", "50%", "75%", "completed", "lead")


async def export_videos(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of videos."""
    found = await _counted(visit, chosen, "video")
    names = [[visit.text(each.title), visit.text(each.video)] for each in found.groups]
    return _table(["title", "video"], names, found)


async def export_days(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of days, newest first."""
    found = await _counted(visit, chosen, "day")
    return _table(["day"], [[each.day] for each in found.groups], found)


async def export_hours(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the table of hours of the day."""
    found = await _counted(visit, chosen, "hour")
    return _table(["hour"], [[each.hour] for each in found.groups], found)


async def export_funnel(visit: Visit, chosen: Chosen) -> Sequence[Sequence[object]]:
    """Return the steps in total."""
    found = await _counted(visit, chosen, "video", 1)
    head = ["step", "people", "events", "events without an address"]
    rows = zip(COLUMNS, found.total, strict=True)
    return [head, *([name, each.people, each.events, each.anonymous] for name, each in rows)]


def _table(
    heads: Sequence[str], names: Sequence[Sequence[object]], found: Funnel
) -> list[Sequence[object]]:
    """Build the table that `relay audience --csv` prints."""
    units = ("people", "events")
    table: list[Sequence[object]] = [
        [*heads, *(f"{step} {unit}" for unit in units for step in COLUMNS)]
    ]
    for cells, group in zip(names, found.groups, strict=True):
        table.append([*cells, *(getattr(step, unit) for unit in units for step in group.steps)])
    return table


async def _counted(visit: Visit, chosen: Chosen, by: Grouping, limit: int = GROUPS_MAX) -> Funnel:
    asked = filter_of(chosen, days_of(chosen, visit.now_ms), by, limit)
    found: Funnel = await visit.run(show_audience, asked)
    return found


DOWNLOADS = (
    Download(path="/audience/videos.csv", file="videos.csv", read=export_videos),
    Download(path="/audience/days.csv", file="days.csv", read=export_days),
    Download(path="/audience/hours.csv", file="hours.csv", read=export_hours),
    Download(path="/audience/funnel.csv", file="funnel.csv", read=export_funnel),
)
