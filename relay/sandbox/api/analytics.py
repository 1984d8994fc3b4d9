"""Analytics: statistics, sessions, a viewer's history, reports (section 4); every key may read."""

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from relay.core import csv_table
from relay.sandbox.analytics import statistics, views
from relay.sandbox.analytics.period import DAYS_MAX, DEFAULT_DAYS, Period, period
from relay.sandbox.analytics.records import (
    Comparison,
    Live,
    Record,
    RetentionPoint,
    SessionPage,
    VideoFigures,
    VideoStats,
    ViewerHistory,
    WorkspaceStats,
)
from relay.sandbox.api.operation import Body, Call, Csv, Id, Operation, Parameters
from relay.sandbox.errors import Refusal, unknown
from relay.sandbox.model import Report, Workspace

Days = Annotated[int, Meta(ge=1, le=DAYS_MAX)]
COMPARED_MAX = 20


class InPeriod(Parameters):
    """The last `days`, today included, or from one day to another, both included."""

    days: Days | None = None
    from_date: date | None = msgspec.field(name="from", default=None)
    to_date: date | None = msgspec.field(name="to", default=None)


class StatsQuery(InPeriod):
    """The period and the form of statistics."""

    format: Literal["json", "csv"] = "json"


class VideoStatsQuery(StatsQuery, kw_only=True):
    """A video, and the period and the form of its statistics."""

    id: str


class SessionsQuery(Parameters):
    """Which page of sessions."""

    limit: Annotated[int, Meta(ge=1, le=views.PAGE_MAX)] = views.PAGE_MAX
    after: str | None = None


class ViewerQuery(Parameters):
    """Whose history."""

    email: Annotated[str, Meta(min_length=1, max_length=320)]


class CompareQuery(InPeriod, kw_only=True):
    """Videos, by their ids with commas between, and a period."""

    videos: Annotated[str, Meta(min_length=1, max_length=1000)]


class NewReport(Body):
    """What a report groups by and shows; `save` gives it a name and keeps it."""

    group_by: statistics.GroupBy
    metrics: Annotated[list[statistics.Metric], Meta(min_length=1, max_length=4)]
    days: Days | None = None
    from_date: date | None = msgspec.field(name="from", default=None)
    to_date: date | None = msgspec.field(name="to", default=None)
    save: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ReportRecord(Record):
    """A report; one that was not saved has neither id nor name."""

    id: str | None
    name: str | None
    group_by: str
    metrics: list[str]
    days: int | None
    from_date: str | None = msgspec.field(name="from")
    to_date: str | None = msgspec.field(name="to")


class ReportAnswer(Record):
    """A report and what it shows now; a row has its group under the group's name."""

    report: ReportRecord
    rows: list[dict[str, Any]]


def read_stats(call: Call, query: StatsQuery) -> WorkspaceStats | Csv:
    """Read the workspace's statistics; as CSV, a line for each video."""
    stats = statistics.workspace_stats(_present(call), _period(call, query))
    if query.format == "csv":
        return Csv(_table(VideoFigures, stats.videos))
    return stats


def read_video_stats(call: Call, query: VideoStatsQuery) -> VideoStats | Csv:
    """Read a video's statistics; as CSV, its audience retention."""
    stats = statistics.video_stats(_present(call), query.id, _period(call, query))
    if query.format == "csv":
        return Csv(_table(RetentionPoint, stats.retention))
    return stats


def list_sessions(call: Call, query: SessionsQuery) -> SessionPage:
    """List every view, the oldest first."""
    return views.session_page(_present(call), after=query.after, limit=query.limit)


def read_viewer(call: Call, query: ViewerQuery) -> ViewerHistory:
    """Read everything that a person watched; nothing for an unknown address."""
    now_ms = call.services.schedule.now_ms()
    return views.viewer_history(_present(call), query.email, now_ms=now_ms)


def create_report(call: Call, _: Parameters, body: NewReport) -> ReportAnswer:
    """Make a report, and save it under a name if that is given."""
    in_period = _period(call, body)
    is_by_days = body.from_date is None
    report = Report(
        id=call.services.workspace.new_id("rep") if body.save else "",
        name=body.save,
        group_by=body.group_by,
        metrics=list(dict.fromkeys(body.metrics)),
        days=body.days or DEFAULT_DAYS if is_by_days else None,
        from_date=None if is_by_days else in_period.first.isoformat(),
        to_date=None if is_by_days else in_period.last.isoformat(),
    )
    if body.save:
        call.services.workspace.reports[report.id] = report
    return _answer(call, report)


def run_report(call: Call, report: Id) -> ReportAnswer:
    """Run a saved report; one by days shows the last days before now."""
    saved = call.services.workspace.reports.get(report.id)
    if saved is None:
        raise unknown("report")
    return _answer(call, saved)


def compare_videos(call: Call, query: CompareQuery) -> Comparison:
    """Compare the figures of some videos."""
    video_ids = list(dict.fromkeys(query.videos.split(",")))
    if len(video_ids) > COMPARED_MAX:
        raise Refusal(422, f"videos: expected at most {COMPARED_MAX}.")
    return statistics.comparison(_present(call), video_ids, _period(call, query))


def read_live(call: Call, _: Parameters) -> Live:
    """Say who is watching now."""
    return views.live(_present(call))


def _present(call: Call) -> Workspace:
    """Return the workspace, with views as far as they have come by now."""
    call.services.viewing.catch_up()
    return call.services.workspace


def _period(call: Call, request: InPeriod | NewReport) -> Period:
    return period(
        days=request.days,
        first=request.from_date,
        last=request.to_date,
        now_ms=call.services.schedule.now_ms(),
    )


def _answer(call: Call, report: Report) -> ReportAnswer:
    in_period = period(
        days=report.days,
        first=None if report.from_date is None else date.fromisoformat(report.from_date),
        last=None if report.to_date is None else date.fromisoformat(report.to_date),
        now_ms=call.services.schedule.now_ms(),
    )
    return ReportAnswer(
        report=ReportRecord.copy_of(report, id=report.id or None),
        rows=statistics.report_rows(
            _present(call), in_period, group_by=report.group_by, metrics=report.metrics
        ),
    )


def _table(kind: type[Record], records: Sequence[Record]) -> str:
    """Write a line of names, which are those of the JSON answers, and one line for each record."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    rows = (record.values() for record in msgspec.to_builtins(records))
    return csv_table.text([names, *rows])


_UNKNOWN = {404: "There is no such video."}

OPERATIONS = (
    Operation("GET", "/v1/stats", read_stats),
    Operation("GET", "/v1/videos/{id}/stats", read_video_stats),
    Operation("GET", "/v1/analytics/sessions", list_sessions),
    Operation("GET", "/v1/analytics/viewer", read_viewer),
    Operation("POST", "/v1/analytics/report", create_report, status=201),
    Operation("GET", "/v1/analytics/reports/{id}/run", run_report),
    Operation("GET", "/v1/analytics/compare", compare_videos, problems=_UNKNOWN),
    Operation("GET", "/v1/analytics/live", read_live),
)
