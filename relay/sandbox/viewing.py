"""Views of videos: what viewers watch, click and submit.

Each milestone is recorded when its position is reached, not at the end of a part.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from relay.core.event import LEAD_CAPTURED, rfc3339
from relay.sandbox import coverage
from relay.sandbox.errors import Refusal, unknown
from relay.sandbox.milestones import Milestones
from relay.sandbox.model import Click, Lead, Session, Video, Workspace
from relay.sandbox.schedule import Schedule, Timer
from relay.sandbox.webhooks import Publisher


class Visit(msgspec.Struct, kw_only=True, frozen=True):
    """How a viewer comes to a video."""

    person: str | None = None
    """The id of a `Person`, whose address the service knows from earlier forms."""
    email: str | None = None
    """From a link with an email parameter."""
    name: str | None = None
    country: str = "DE"
    device: str = "desktop"
    page: str = "https://www.example.com/"
    utm: dict[str, str] = {}


class _Play(msgspec.Struct, kw_only=True):
    """The playing of a part; in a view, one at a time."""

    session: Session
    start_s: float
    end_s: float
    begun_ms: int
    """In the schedule's time."""
    position_s: float
    """As far as the session's parts say."""
    then: Callable[[], None] | None
    timer: Timer | None = None

    @property
    def end_ms(self) -> int:
        return self.due_ms(self.end_s)

    def due_ms(self, position_s: float) -> int:
        """Return the schedule's time at which a position is reached, in whole milliseconds."""
        return self.begun_ms + math.ceil(round((position_s - self.start_s) * 1000, 3))


class Viewing:
    """All views of the workspace; those that an earlier run left open have ended."""

    def __init__(self, workspace: Workspace, schedule: Schedule, publisher: Publisher) -> None:
        self._workspace = workspace
        self._schedule = schedule
        self._publisher = publisher
        self._plays: dict[str, _Play] = {}
        self._milestones = Milestones(workspace, schedule, publisher)
        for session in workspace.sessions.values():
            session.ended_ms = session.ended_ms or schedule.now_ms()

    def begin(self, video_id: str, visit: Visit) -> Session:
        """Open a view; raises Refusal for a video that is not ready or is in Trash."""
        video = self._watchable(video_id)
        person = self._workspace.people.get(visit.person or "")
        email = (None if person is None else person.email) or visit.email
        name = visit.name if person is None else person.name
        session = Session(
            id=self._workspace.new_id("ses"),
            video=video.id,
            person=visit.person,
            email=None,
            name=None,
            started_ms=self._schedule.now_ms(),
            duration_s=video.duration_s,
            country=visit.country,
            device=visit.device,
            page=visit.page,
            utm=dict(visit.utm),
        )
        self._workspace.sessions[session.id] = session
        self._workspace.titles[video.id] = video.title
        if email is None:
            self._milestones.record(session)
        else:
            self._milestones.identify(session, email=email, name=name)
        return session

    def watch(
        self, session_id: str, start_s: float, end_s: float, then: Callable[[], None] | None = None
    ) -> None:
        """Play a part from now on, in place of another one; `then` follows its end."""
        session = self._open(session_id)
        if not 0 <= start_s <= end_s <= session.duration_s:
            raise Refusal(422, f"A part lies between 0 and {session.duration_s:g} s.")
        self._stop(session)
        play = _Play(
            session=session,
            start_s=start_s,
            end_s=end_s,
            begun_ms=self._schedule.time_ms(),
            position_s=start_s,
            then=then,
        )
        self._plays[session_id] = play
        self._schedule_milestone(play)

    def pause(self, session_id: str) -> None:
        """Stop the playing in a view."""
        self._stop(self._open(session_id))

    def click(self, session_id: str, label: str, url: str) -> None:
        click = Click(label=label, url=url, at_ms=self._schedule.now_ms())
        self._open(session_id).clicked.append(click)

    def submit(self, session_id: str, *, email: str, name: str, fields: dict[str, Any]) -> Lead:
        """Submit an email form, which identifies the viewer of an anonymous view."""
        session = self._open(session_id)
        self._advance_view(session)
        lead = Lead(
            id=self._workspace.new_id("lead"),
            video=session.video,
            email=email.strip(),
            name=name,
            fields=dict(fields),
            created_ms=self._schedule.now_ms(),
        )
        session.submitted.append(lead)
        self._publisher.publish(
            LEAD_CAPTURED, _lead_data(lead, self._workspace.titles[session.video])
        )
        if session.email is None:
            self._milestones.identify(session, email=email, name=name)
            self._reschedule(session)
        return lead

    def end(self, session_id: str) -> None:
        """Close a view."""
        session = self._open(session_id)
        self._stop(session)
        session.ended_ms = self._schedule.now_ms()

    def catch_up(self) -> None:
        """Record the playback position of every view, so that answers are up to date."""
        for play in self._plays.values():
            self._advance(play)

    def _watchable(self, video_id: str) -> Video:
        video = self._workspace.videos.get(video_id)
        if video is None:
            raise unknown("video")
        if video.trashed or video.status != "ready" or video.duration_s <= 0:
            raise Refusal(409, "The video is not ready, or in Trash.")
        return video

    def _open(self, session_id: str) -> Session:
        session = self._workspace.sessions.get(session_id)
        if session is None:
            raise unknown("view")
        if session.ended_ms is not None:
            raise Refusal(409, "The view has ended.")
        return session

    def _schedule_milestone(self, play: _Play) -> None:
        """Continue a play when it passes its next milestone, or at its end."""
        session = play.session
        duration_s = session.duration_s
        ahead = coverage.share((play.position_s, play.end_s), duration_s)
        passing = coverage.next_passing(self._milestones.seen(session), ahead)
        due_ms = play.end_ms
        if passing is not None:
            due_ms = min(due_ms, play.due_ms(passing * duration_s))
        if due_ms < play.end_ms:  # by rounding, a milestone may be a millisecond further on
            due_ms = max(due_ms, self._schedule.time_ms() + 1)
        play.timer = self._schedule.at(due_ms, partial(self._continue, play))

    def _reschedule(self, session: Session) -> None:
        """Recompute the next milestone: the viewer is now identified, so earlier views count."""
        play = self._plays.get(session.id)
        if play is not None:
            self._cancel(play)
            self._schedule_milestone(play)

    def _continue(self, play: _Play) -> None:
        self._advance(play)
        if self._schedule.time_ms() < play.end_ms:
            self._schedule_milestone(play)
            return
        del self._plays[play.session.id]
        if play.then is not None:
            play.then()

    def _stop(self, session: Session) -> None:
        self._advance_view(session)
        play = self._plays.pop(session.id, None)
        if play is not None:
            self._cancel(play)

    def _cancel(self, play: _Play) -> None:
        if play.timer is not None:
            play.timer.cancel()

    def _advance_view(self, session: Session) -> None:
        play = self._plays.get(session.id)
        if play is not None:
            self._advance(play)

    def _advance(self, play: _Play) -> None:
        """Record the playback position and the milestones passed."""
        elapsed_s = (self._schedule.time_ms() - play.begun_ms) / 1000
        position_s = min(play.end_s, play.start_s + elapsed_s)
        if position_s <= play.position_s:
            return
        parts = play.session.parts
        if play.position_s > play.start_s:
            parts.pop()
        parts.append((play.start_s, position_s))
        play.position_s = position_s
        self._milestones.record(play.session)


def _lead_data(lead: Lead, title: str) -> dict[str, Any]:
    return {
        "id": lead.id,
        "email": lead.email,
        "name": lead.name,
        "fields": lead.fields,
        "video": {"id": lead.video, "title": title},
        "createdAt": rfc3339(lead.created_ms),
    }
