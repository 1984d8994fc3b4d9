"""Statistics of the workspace and of single videos in a period, and custom reports of it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Literal, TypeVar

import msgspec

from relay.sandbox import coverage
from relay.sandbox.analytics.period import Period, day
from relay.sandbox.analytics.records import (
    CampaignPlays,
    Comparison,
    CountryPlays,
    DayPlays,
    DevicePlays,
    Figures,
    PagePlays,
    RetentionPoint,
    VideoFigures,
    VideoName,
    VideoStats,
    WorkspaceStats,
)
from relay.sandbox.analytics.views import identity, watched_seconds
from relay.sandbox.errors import unknown
from relay.sandbox.model import Session, Workspace

_T = TypeVar("_T", bound=Hashable)

TOP_PAGES = 10
RETENTION_STEP = 5
"""Percent between two points of the retention."""

GroupBy = Literal["video", "day", "country", "device", "page"]
Metric = Literal["plays", "viewers", "watchedSeconds", "leads"]

_GROUPS: dict[str, Callable[[Session], str]] = {
    "video": lambda session: session.video,
    "day": lambda session: day(session.started_ms).isoformat(),
    "country": lambda session: session.country,
    "device": lambda session: session.device,
    "page": lambda session: session.page,
}
_METRICS: dict[str, str] = {
    "plays": "plays",
    "viewers": "viewers",
    "watchedSeconds": "watched_seconds",
    "leads": "leads",
}


def workspace_stats(workspace: Workspace, period: Period) -> WorkspaceStats:
    """Return totals, plays per day, all videos, top pages and campaigns."""
    sessions = period.select(workspace.sessions.values())
    by_day = Counter(day(session.started_ms) for session in sessions)
    return WorkspaceStats(
        from_date=period.first.isoformat(),
        to_date=period.last.isoformat(),
        totals=figures(sessions),
        days=[DayPlays(date=each.isoformat(), plays=by_day[each]) for each in period.days()],
        videos=_all_videos(workspace, sessions),
        pages=[
            PagePlays(page=page, plays=plays)
            for page, plays in _ranked(session.page for session in sessions)[:TOP_PAGES]
        ],
        campaigns=[
            CampaignPlays(source=source, medium=medium, campaign=campaign, plays=plays)
            for (source, medium, campaign), plays in _campaigns(sessions)
        ],
    )


def video_stats(workspace: Workspace, video_id: str, period: Period) -> VideoStats:
    """Return retention, completion, countries and devices of a video; raises Refusal."""
    sessions = _of_video(workspace, video_id, period)
    all_figures = figures(sessions)
    return VideoStats(
        video=VideoName.of(workspace, video_id),
        from_date=period.first.isoformat(),
        to_date=period.last.isoformat(),
        plays=all_figures.plays,
        viewers=all_figures.viewers,
        completion_rate=all_figures.completion_rate,
        retention=_retention(sessions),
        countries=[
            CountryPlays(country=country, plays=plays)
            for country, plays in _ranked(session.country for session in sessions)
        ],
        devices=[
            DevicePlays(device=device, plays=plays)
            for device, plays in _ranked(session.device for session in sessions)
        ],
    )


def comparison(workspace: Workspace, video_ids: Iterable[str], period: Period) -> Comparison:
    """Return the figures of some videos; raises Refusal for an unknown one."""
    return Comparison(
        videos=[
            _video_figures(workspace, video_id, _of_video(workspace, video_id, period))
            for video_id in video_ids
        ]
    )


def report_rows(
    workspace: Workspace, period: Period, *, group_by: str, metrics: list[str]
) -> list[dict[str, Any]]:
    """Return a row of a report for each group that was played, in the order of their names."""
    groups: dict[str, list[Session]] = {}
    for session in period.select(workspace.sessions.values()):
        groups.setdefault(_GROUPS[group_by](session), []).append(session)
    return [
        {group_by: _shown(workspace, group_by, name)} | _values(groups[name], metrics)
        for name in sorted(groups)
    ]


def figures(sessions: Iterable[Session]) -> Figures:
    """Return the figures of some views."""
    sessions = list(sessions)
    watched = {(identity(session), session.video) for session in sessions}
    finished = {(identity(each), each.video) for each in sessions if each.finished}
    return Figures(
        plays=len(sessions),
        viewers=len({viewer for viewer, _ in watched}),
        watched_seconds=watched_seconds(sessions),
        leads=sum(len(session.submitted) for session in sessions),
        completion_rate=round(len(finished) / len(watched), 4) if watched else 0.0,
    )


def _shown(workspace: Workspace, group_by: str, name: str) -> str | VideoName:
    return VideoName.of(workspace, name) if group_by == "video" else name


def _values(sessions: list[Session], metrics: list[str]) -> dict[str, Any]:
    all_figures = figures(sessions)
    return {metric: getattr(all_figures, _METRICS[metric]) for metric in metrics}


def _of_video(workspace: Workspace, video_id: str, period: Period) -> list[Session]:
    if video_id not in workspace.videos:
        raise unknown("video")
    every = workspace.sessions.values()
    return period.select(session for session in every if session.video == video_id)


def _all_videos(workspace: Workspace, sessions: Iterable[Session]) -> list[VideoFigures]:
    """Return the videos of the library and the others that were watched, most played first."""
    by_video: dict[str, list[Session]] = {video: [] for video in workspace.videos}
    for session in sessions:
        by_video.setdefault(session.video, []).append(session)
    videos = [_video_figures(workspace, video, some) for video, some in by_video.items()]
    return sorted(videos, key=lambda each: (-each.plays, each.id))


def _video_figures(
    workspace: Workspace, video_id: str, sessions: Iterable[Session]
) -> VideoFigures:
    all_figures = msgspec.structs.asdict(figures(sessions))
    return VideoFigures(id=video_id, title=workspace.titles[video_id], **all_figures)


def _retention(sessions: Iterable[Session]) -> list[RetentionPoint]:
    by_viewer: defaultdict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        by_viewer[identity(session)].append(session)
    seen = [coverage.shares(some) for some in by_viewer.values()]
    return [
        RetentionPoint(
            percent=percent,
            viewers=sum(coverage.includes(parts, percent / 100) for parts in seen),
        )
        for percent in range(0, 101, RETENTION_STEP)
    ]


def _campaigns(
    sessions: Iterable[Session],
) -> list[tuple[tuple[str | None, str | None, str | None], int]]:
    tags = (session.utm for session in sessions if session.utm)
    return _ranked((utm.get("source"), utm.get("medium"), utm.get("campaign")) for utm in tags)


def _ranked(values: Iterable[_T]) -> list[tuple[_T, int]]:
    """Return each value with how often it occurs, the most frequent first."""
    return sorted(Counter(values).items(), key=lambda item: (-item[1], str(item[0])))
