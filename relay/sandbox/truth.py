"""All that viewers did: what webhooks should have said, and what stays anonymous.

Tests compare it with the events that a relay has.
"""

from relay.core.event import rfc3339
from relay.sandbox.analytics.records import Record, Submission, VideoName
from relay.sandbox.model import Workspace


class Reached(Record):
    """A milestone that an identified viewer reached: one event."""

    email: str
    video: VideoName
    milestone: str
    at: str


class ReachedAnonymously(Record):
    """A milestone of an anonymous view: no event."""

    session: str
    video: VideoName
    milestone: str
    at: str


class Captured(Record):
    """A form that was submitted: one event."""

    session: str
    video: VideoName
    lead: Submission


class Truth(Record):
    """All milestones and leads, in the order of their times."""

    milestones: list[Reached]
    anonymous: list[ReachedAnonymously]
    leads: list[Captured]


def truth(workspace: Workspace) -> Truth:
    """Return all milestones that were reached, and all forms that were submitted."""
    return Truth(
        milestones=[
            Reached.copy_of(row, video=VideoName.of(workspace, row.video))
            for row in workspace.milestones
        ],
        anonymous=sorted(_anonymous(workspace), key=lambda reached: reached.at),
        leads=sorted(_leads(workspace), key=lambda captured: captured.lead.created_at),
    )


def _anonymous(workspace: Workspace) -> list[ReachedAnonymously]:
    return [
        ReachedAnonymously(
            session=session.id,
            video=VideoName.of(workspace, session.video),
            milestone=milestone,
            at=rfc3339(at_ms),
        )
        for session in workspace.sessions.values()
        if session.email is None
        for milestone, at_ms in session.passed.items()
    ]


def _leads(workspace: Workspace) -> list[Captured]:
    return [
        Captured(
            session=session.id,
            video=VideoName.of(workspace, lead.video),
            lead=Submission.copy_of(lead),
        )
        for session in workspace.sessions.values()
        for lead in session.submitted
    ]
