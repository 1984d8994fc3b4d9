"""The state of the sandbox: what a workspace of the video service holds.

All times are milliseconds since the epoch; positions in a video are seconds.
"""

from typing import Any, Literal

import msgspec

Access = Literal["Read only", "Read & write videos", "Admin"]
"""What a key may do (video-service.md, section 2)."""

VideoStatus = Literal["uploading", "processing", "ready", "failed"]
AttemptState = Literal["pending", "delivered", "failed"]
"""State of an attempt to deliver a webhook (video-service.md, section 3)."""

Part = tuple[float, float]
"""A part of a video that was watched, from one position to another."""


class Key(msgspec.Struct, kw_only=True):
    """An API key; the sandbox keeps its value, because a developer may lose it."""

    id: str
    name: str
    access: Access
    value: str
    created_ms: int
    last_used_ms: int | None = None
    revoked_ms: int | None = None


class Upload(msgspec.Struct, kw_only=True):
    """A file, or a part of one, on its way to storage; its bytes are counted and not kept."""

    token: str
    """The secret part of the upload URL."""
    video: str
    part: int | None
    """The number of a part, from 1; None for a whole file."""
    size: int
    headers: dict[str, str]
    expires_ms: int
    arrived_ms: int | None = None


class Video(msgspec.Struct, kw_only=True):
    """A video of the library; one that was deleted for good has gone."""

    id: str
    title: str
    filename: str
    type: str
    size: int
    duration_s: float
    """The duration that processing will find."""
    trimmed_s: float | None = None
    """The duration that a trim leaves, until it has been processed."""
    width: int
    height: int
    created_ms: int
    updated_ms: int
    status: VideoStatus = "uploading"
    version: int = 1
    is_published: bool = False
    """Whether it was ready once; its processing is that of a replacement or a trim then."""
    error: str | None = None
    trashed: bool = False


class Endpoint(msgspec.Struct, kw_only=True):
    """A webhook endpoint; no events means all of them."""

    id: str
    url: str
    events: list[str]
    secret: str
    created_ms: int


class Attempt(msgspec.Struct, kw_only=True):
    """One attempt to deliver an event to an endpoint."""

    id: str
    endpoint: str
    event_id: str
    event: str
    number: int
    """1 to 6."""
    state: AttemptState
    started_ms: int
    duration_ms: int | None = None
    status: int | None = None
    response: str = ""
    """The beginning of the response's body, or why there was none."""


class Notification(msgspec.Struct, kw_only=True):
    """An event that an endpoint has not taken yet."""

    endpoint: str
    event_id: str
    event: str
    body: bytes
    next_number: int
    """The number of the next attempt."""
    due_ms: int


class Person(msgspec.Struct, kw_only=True):
    """A viewer of the population; an anonymous one has no address until a form names it."""

    id: str
    name: str
    email: str | None
    country: str
    device: str


class Click(msgspec.Struct, kw_only=True):
    """What a viewer clicked in a video."""

    label: str
    url: str
    at_ms: int


class Lead(msgspec.Struct, kw_only=True):
    """A form that a viewer submitted."""

    id: str
    video: str
    email: str
    name: str
    fields: dict[str, Any]
    created_ms: int


class Session(msgspec.Struct, kw_only=True):
    """One view of one video; `ended_ms` is None while it lasts."""

    id: str
    video: str
    person: str | None
    """The id of a `Person`; None for a view by a stranger."""
    email: str | None
    """The address by which the service knows the viewer; None for an anonymous view."""
    name: str | None
    started_ms: int
    duration_s: float
    """The duration of the version that was played, which a replacement or trim changes."""
    country: str
    device: str
    page: str
    utm: dict[str, str]
    ended_ms: int | None = None
    parts: list[Part] = []
    clicked: list[Click] = []
    submitted: list[Lead] = []
    finished: bool = False
    """Whether the viewer had finished the video by the end of this view."""
    passed: dict[str, int] = {}
    """The milestones that the viewer first passed in this view, and when; also anonymous ones."""


class Milestone(msgspec.Struct, kw_only=True):
    """A milestone that an identified viewer reached, for which one event was made."""

    email: str
    video: str
    milestone: str
    at_ms: int


class Report(msgspec.Struct, kw_only=True):
    """A saved report; a period is either `days`, or `from_date` and `to_date`."""

    id: str
    name: str | None
    group_by: str
    metrics: list[str]
    days: int | None = None
    from_date: str | None = None
    to_date: str | None = None


class Workspace(msgspec.Struct, kw_only=True):
    """All that the sandbox knows; the dictionaries are in the order of creation."""

    next_number: int = 1
    """For ids, which are never used again."""
    seed: int = 7
    schedule_ms: int | None = None
    """The schedule's time when the workspace was last written."""
    keys: dict[str, Key] = {}
    videos: dict[str, Video] = {}
    uploads: dict[str, Upload] = {}
    """By token."""
    endpoints: dict[str, Endpoint] = {}
    attempts: list[Attempt] = []
    """The last 50 of each endpoint, the oldest first."""
    outbox: list[Notification] = []
    """In the order of publication."""
    people: dict[str, Person] = {}
    sessions: dict[str, Session] = {}
    milestones: list[Milestone] = []
    reports: dict[str, Report] = {}
    titles: dict[str, str] = {}
    """Titles of videos that sessions name, also after the videos have gone."""
    processing: dict[str, int] = {}
    """When the processing of a video ends, by its id."""

    def new_id(self, prefix: str) -> str:
        """Return an id such as `vid_000017`."""
        number, self.next_number = self.next_number, self.next_number + 1
        return f"{prefix}_{number:06d}"
