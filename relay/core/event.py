"""The `Event`, created only by `authentication` or read back from the store."""

import hashlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast
from unicodedata import normalize

import msgspec

from relay.core import foreign_json
from relay.core.watch_history import WatchHistory

VIDEO_WATCHED = "video.watched"
LEAD_CAPTURED = "lead.captured"
WEBHOOK_TEST = "webhook.test"

KINDS = (
    "video.created",
    "video.ready",
    "video.failed",
    "video.deleted",
    VIDEO_WATCHED,
    LEAD_CAPTURED,
    WEBHOOK_TEST,
)
"""Documented event kinds (video-service.md, section 6); unknown kinds are relayed as well."""

SUBSCRIBABLE = tuple(kind for kind in KINDS if kind != WEBHOOK_TEST)
"""`webhook.test` is sent whatever the subscription (video-service.md, section 6)."""

MILESTONES = ("started", "25%", "50%", "75%", "completed")

PROGRESS = dict(zip(MILESTONES, (0, 25, 50, 75, 100), strict=True))
"""The `progress` of the event of each milestone (video-service.md, section 6)."""

THRESHOLDS = dict(zip(MILESTONES, (0.0, 25.0, 50.0, 75.0, 90.0), strict=True))
"""The percentage of a video that reaches each milestone (video-service.md, section 6)."""

LEAD = "lead"
"""The funnel step after the milestones: the viewer left an address."""

Outcome = Literal["accepted", "duplicate", "conflict", "unreadable"]
"""Outcome of a verified request; conflict: a known id with another body, the first is kept."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A verified event; its identity is `(source, id)`."""

    source: str
    id: str
    kind: str
    """The envelope's `event`."""
    created_at: str | None
    """The envelope's `createdAt` as received; its format is undocumented."""
    received_ms: int
    body: bytes
    """The raw bytes that were signed; never re-encoded."""
    headers: bytes = b""
    """The request's header lines as received, names in lower case, without credentials."""
    watch_history: WatchHistory | None = None
    """What a lead's person has watched, for a sink with `enrich`; not received, and never stored.

    None where that is not known.
    """
    reconstructed: bool = False
    """Made by the relay from the sender's API, because the original was lost in an outage."""

    def document(self) -> dict[str, Any]:
        """Decode the body; each call returns a copy of its own."""
        return cast("dict[str, Any]", foreign_json.decode(self.body))

    def video_id(self) -> str | None:
        """Return the id of the event's video (video-service.md, section 6)."""
        return _text(_video(self.kind, self.document()), "id")

    def person(self) -> str | None:
        """Return the viewer's or lead's e-mail address, folded (video-service.md, section 6)."""
        return _person(self.document())

    def address(self) -> str | None:
        """Return the same e-mail address as it was received, without the blanks around it."""
        return _address(self.document())

    def milestone(self) -> str | None:
        """Return the milestone of a `video.watched`; None for an unknown one."""
        return milestone(self.document()) if self.kind == VIDEO_WATCHED else None

    @property
    def known_kind(self) -> str:
        """The kind, or `other` for an undocumented one."""
        return self.kind if self.kind in KINDS else "other"


class Engagement(NamedTuple):
    """Audience data of an event; None for absent values."""

    step: str | None
    """A milestone, or `LEAD`."""
    video: str | None
    title: str | None
    person: str | None
    """The folded e-mail address of the viewer or the lead."""


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A verified request without a usable event, kept raw, because a retry would not help."""

    source: str
    received_ms: int
    body: bytes
    headers: bytes
    reason: str

    @property
    def digest(self) -> bytes:
        """SHA-256 of the body, which identifies the request."""
        return hashlib.sha256(self.body).digest()

    @property
    def short_id(self) -> str:
        """The first digits of the digest, as the commands show it."""
        return self.digest.hex()[:12]


def folded(address: str) -> str:
    """Return an e-mail address in canonical form, for comparison."""
    # An accented letter can be one code point or two.
    text = address.casefold()
    return text if text.isascii() else normalize("NFC", text)


def rfc3339(ms: int) -> str:
    """Format milliseconds since the epoch as a time in UTC: `2026-03-02T09:30:00.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{rest:03}Z"


def rfc3339_or_none(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


@lru_cache(maxsize=64)
def _to_the_second(seconds: int) -> str:
    """Cached, because many events share a second, and formatting it is the expensive part."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def milestone(document: dict[str, Any]) -> str | None:
    """Return the milestone of a `video.watched` document; None for an unknown one."""
    data = document.get("data")
    value = data.get("milestone") if isinstance(data, dict) else None
    return value if value in MILESTONES else None


def engagement(kind: str, document: dict[str, Any]) -> Engagement:
    """Read the audience data from an event's document."""
    step = LEAD if kind == LEAD_CAPTURED else None
    if kind == VIDEO_WATCHED:
        step = milestone(document)
    video = _video(kind, document)
    return Engagement(step, _text(video, "id"), _text(video, "title"), _person(document))


def _video(kind: str, document: dict[str, Any]) -> object:
    data = document.get("data")
    if not isinstance(data, dict):
        return None
    return data.get("video", data if kind.startswith("video.") else None)


def _text(holder: object, name: str) -> str | None:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, str) else None


def _person(document: dict[str, Any]) -> str | None:
    address = _address(document)
    return None if address is None else folded(address) or None


def _address(document: dict[str, Any]) -> str | None:
    data = document.get("data")
    viewer = data.get("viewer") if isinstance(data, dict) else None
    email = _text(viewer if isinstance(viewer, dict) else data, "email")
    return None if email is None else email.strip() or None
