"""What the API's answers say; None stands for what an answer does not say.

The field names in answers are assumptions: docs/video-service.md lists them.
"""

from typing import Any

import msgspec

from relay.core.config_values import Secret


class Video(msgspec.Struct, frozen=True, kw_only=True):
    """A video of the library; trashed ones are in it, those deleted for good are not."""

    id: str
    title: str | None = None
    status: str | None = None
    version: int | None = None
    duration_s: float | None = None
    width: int | None = None
    height: int | None = None
    error: str | None = None
    trashed: bool | None = None
    created_ms: int | None = None
    updated_ms: int | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A form that a viewer submitted, as far as the session says it."""

    id: str | None = None
    email: str | None = None
    name: str | None = None
    fields: dict[str, Any] | None = None
    created_ms: int | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One view of one video; `email` is None for an anonymous viewer."""

    id: str | None = None
    video_id: str | None = None
    title: str | None = None
    email: str | None = None
    name: str | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    percent: float | None = None
    """The part of the video that was watched in this view alone, 0 to 100."""
    finished: bool | None = None
    submitted: tuple[Submission, ...] = ()


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some sessions, the oldest first; `next` is where the following page begins."""

    sessions: tuple[Session, ...]
    next: str | None


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """All views of one video by one person together."""

    video_id: str
    title: str | None = None
    percent: float | None = None
    """The part of the video that was watched, 0 to 100."""
    finished: bool | None = None
    first_ms: int | None = None
    last_ms: int | None = None


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook endpoint; no events means all of them, None that the answer does not say."""

    id: str
    url: str | None = None
    events: tuple[str, ...] | None = None


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A new webhook endpoint with its secret, which is shown only once."""

    webhook: Webhook | None
    """None where the answer has no id; the secret is worth keeping nevertheless."""
    secret: Secret


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of the service to deliver an event."""

    event: str | None = None
    event_id: str | None = None
    number: int | None = None
    state: str | None = None
    status: int | None = None
    response: str | None = None
    started_ms: int | None = None
