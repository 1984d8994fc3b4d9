"""Custom reports: figures of the views in a period, by one property of theirs."""

from collections.abc import Callable
from typing import Any, Literal

from relay.sandbox.analytics.period import Period, day
from relay.sandbox.analytics.records import VideoName
from relay.sandbox.analytics.statistics import figures
from relay.sandbox.model import Session, Workspace

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


def rows(
    workspace: Workspace, period: Period, *, group_by: str, metrics: list[str]
) -> list[dict[str, Any]]:
    """Return a row for each group that was played, in the order of their names."""
    groups: dict[str, list[Session]] = {}
    for session in period.select(workspace.sessions.values()):
        groups.setdefault(_GROUPS[group_by](session), []).append(session)
    return [
        {group_by: _shown(workspace, group_by, name)} | _values(groups[name], metrics)
        for name in sorted(groups)
    ]


def _shown(workspace: Workspace, group_by: str, name: str) -> str | VideoName:
    return VideoName.of(workspace, name) if group_by == "video" else name


def _values(sessions: list[Session], metrics: list[str]) -> dict[str, Any]:
    all_figures = figures(sessions)
    return {metric: getattr(all_figures, _METRICS[metric]) for metric in metrics}
