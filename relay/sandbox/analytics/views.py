"""Single views, what one person watched, and who is watching now."""

from collections import defaultdict
from collections.abc import Iterable

from relay.core.event import folded, rfc3339
from relay.sandbox import coverage
from relay.sandbox.analytics.records import (
    ClickRecord,
    Live,
    LiveVideo,
    SessionPage,
    SessionRecord,
    Submission,
    VideoName,
    ViewerHistory,
    ViewerName,
    WatchedVideo,
)
from relay.sandbox.errors import Refusal
from relay.sandbox.model import Session, Workspace

PAGE_MAX = 1000
"""Sessions on a page (video-service.md, section 8)."""


def session_page(workspace: Workspace, *, after: str | None, limit: int = PAGE_MAX) -> SessionPage:
    """Return the sessions that began after another one; raises Refusal for an unknown one."""
    sessions = list(workspace.sessions.values())
    first = 0
    if after is not None:
        if after not in workspace.sessions:
            raise Refusal(422, "after: expected the `next` of a page.")
        first = list(workspace.sessions).index(after) + 1
    shown = sessions[first : first + limit]
    has_more = first + limit < len(sessions)
    return SessionPage(
        sessions=[_record(workspace, session) for session in shown],
        next=shown[-1].id if has_more else None,
    )


def viewer_history(workspace: Workspace, email: str, *, now_ms: int) -> ViewerHistory:
    """Return what a person watched, by video; nothing for an address that is unknown."""
    address = folded(email.strip())
    by_video: defaultdict[str, list[Session]] = defaultdict(list)
    name = None
    for session in workspace.sessions.values():
        if session.email == address:
            by_video[session.video].append(session)
            name = session.name or name
    return ViewerHistory(
        viewer=ViewerName(email=address, name=name),
        videos=[_watched(workspace, sessions, now_ms) for sessions in by_video.values()],
    )


def live(workspace: Workspace) -> Live:
    """Return who is watching now, by video."""
    by_video: defaultdict[str, set[str]] = defaultdict(set)
    for session in workspace.sessions.values():
        if session.ended_ms is None:
            by_video[session.video].add(identity(session))
    return Live(
        viewers=len(set().union(*by_video.values())),
        videos=[
            LiveVideo(id=video, title=workspace.titles[video], viewers=len(viewers))
            for video, viewers in by_video.items()
        ],
    )


def identity(session: Session) -> str:
    """Return whom a view counts for: an address, else a browser, else the view itself."""
    return session.email or session.person or session.id


def watched_seconds(sessions: Iterable[Session]) -> float:
    """Return the time that was watched, repeated parts as often as they were seen."""
    return round(sum(end - start for each in sessions for start, end in each.parts), 3)


def _watched(workspace: Workspace, sessions: list[Session], now_ms: int) -> WatchedVideo:
    return WatchedVideo(
        video=VideoName.of(workspace, sessions[0].video),
        sessions=len(sessions),
        watched_seconds=watched_seconds(sessions),
        watched_percent=coverage.percent(coverage.shares(sessions)),
        finished=any(session.finished for session in sessions),
        first_watched_at=rfc3339(sessions[0].started_ms),
        last_watched_at=rfc3339(max(session.ended_ms or now_ms for session in sessions)),
    )


def _record(workspace: Workspace, session: Session) -> SessionRecord:
    viewer = None
    if session.email is not None:
        viewer = ViewerName(email=session.email, name=session.name)
    return SessionRecord.copy_of(
        session,
        video=VideoName.of(workspace, session.video),
        viewer=viewer,
        watched_seconds=watched_seconds((session,)),
        watched_percent=coverage.percent(coverage.shares((session,))),
        clicked=[ClickRecord.copy_of(click) for click in session.clicked],
        submitted=[Submission.copy_of(lead) for lead in session.submitted],
    )
