"""Who has seen how much of which video, and the milestones that are published for it.

`video.watched` is published once per identified viewer, video and milestone. The viewer of an
anonymous view is unknown until a form of it names an address; what the view had passed by then is
published at that moment.
"""

from collections import defaultdict
from typing import Any

from relay.core.event import PROGRESS, VIDEO_WATCHED, folded
from relay.sandbox import coverage
from relay.sandbox.model import Milestone, Part, Session, Workspace
from relay.sandbox.schedule import Schedule
from relay.sandbox.webhooks import Publisher


class Milestones:
    """The milestones of all viewers of a workspace."""

    def __init__(self, workspace: Workspace, schedule: Schedule, publisher: Publisher) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._publisher = publisher
        self._views: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
        for session in workspace.sessions.values():
            if session.email is not None:
                self._views[session.email, session.video].append(session)
        self._reached = {(row.email, row.video, row.milestone) for row in workspace.milestones}

    def seen(self, session: Session) -> list[Part]:
        """Return what the viewer has seen of the video, as shares, in all views of the address."""
        if session.email is None:
            return coverage.shares((session,))
        return coverage.shares(self._views[session.email, session.video])

    def identify(self, session: Session, *, email: str, name: str | None) -> None:
        """Name the viewer of a view, and of later ones by the same person."""
        session.email, session.name = folded(email.strip()), name
        self._views[session.email, session.video].append(session)
        person = self._workspace.people.get(session.person or "")
        if person is not None and person.email is None:
            person.email = session.email
        self.record(session)

    def record(self, session: Session) -> None:
        """Record, and publish, what the viewer has passed by now."""
        percentage = coverage.percent(self.seen(session))
        session.finished = session.finished or coverage.is_finished(percentage)
        for milestone in coverage.passed(percentage):
            self._pass(session, milestone)

    def _pass(self, session: Session, milestone: str) -> None:
        now_ms = self._schedule.now_ms()
        if session.email is None:
            session.passed.setdefault(milestone, now_ms)
            return
        identity = (session.email, session.video, milestone)
        if identity in self._reached:
            return
        self._reached.add(identity)
        session.passed.setdefault(milestone, now_ms)
        row = Milestone(email=session.email, video=session.video, milestone=milestone, at_ms=now_ms)
        self._workspace.milestones.append(row)
        data = _watched_data(row, session.name, self._workspace.titles[session.video])
        self._publisher.publish(VIDEO_WATCHED, data)


def _watched_data(row: Milestone, name: str | None, title: str) -> dict[str, Any]:
    return {
        "video": {"id": row.video, "title": title},
        "viewer": {"email": row.email, "name": name},
        "progress": PROGRESS[row.milestone],
        "milestone": row.milestone,
        "completed": row.milestone == coverage.COMPLETED,
    }
