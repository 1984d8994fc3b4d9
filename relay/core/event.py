"""What arrives: an `Event`, made only by `inbound.authenticate` or read back from the store."""

import hashlib
from typing import Any, Literal, NamedTuple, cast
from unicodedata import normalize

import msgspec
import orjson

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
"""The sender's event kinds (video-service.md, section 6); others may come and are relayed alike."""

MILESTONES = ("started", "25%", "50%", "75%", "completed")

LEAD = "lead"
"""The step that follows them in a funnel: whoever left an address."""

Outcome = Literal["accepted", "duplicate", "conflict", "unreadable"]
"""What became of a verified request; conflict: a known id with another body, the first stays."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A verified event; its identity is `(source, id)`."""

    source: str
    id: str
    kind: str
    """The envelope's `event`."""
    created_at: str | None
    """The envelope's `createdAt` as received; its form is not documented."""
    received_ms: int
    body: bytes
    """The raw bytes that were signed; never encoded again."""
    headers: bytes = b""
    """The request's head as received, a line each, names in lower case; credentials left out."""

    def document(self) -> dict[str, Any]:
        """The body decoded anew at each call, so that nobody can change a shared copy."""
        return cast("dict[str, Any]", orjson.loads(self.body))

    def video_id(self) -> str | None:
        """The id of the video that the event is about (video-service.md, section 6)."""
        return _text(_video(self.kind, self.document()), "id")

    def person(self) -> str | None:
        """The e-mail address of the viewer or the lead (video-service.md, section 6), folded."""
        return _person(self.document())

    def milestone(self) -> str | None:
        """The milestone that a `video.watched` reports; None where it is none that we know."""
        return milestone(self.document()) if self.kind == VIDEO_WATCHED else None

    @property
    def known_kind(self) -> str:
        """The kind, or `other` for one that the sender's document does not list."""
        return self.kind if self.kind in KINDS else "other"


class Engagement(NamedTuple):
    """What an event says of a video's audience; None for all that it does not say."""

    step: str | None
    """A milestone, or `LEAD`."""
    video: str | None
    title: str | None
    person: str | None
    """The folded e-mail address of the viewer or the lead."""


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A verified request without a usable event in it: kept raw, because a retry cannot help."""

    source: str
    received_ms: int
    body: bytes
    headers: bytes
    reason: str

    @property
    def digest(self) -> bytes:
        """SHA-256 of the body, by which the request is known."""
        return hashlib.sha256(self.body).digest()

    @property
    def short_id(self) -> str:
        """The beginning of the digest, by which an operator can ask for the request."""
        return self.digest.hex()[:12]


def folded(address: str) -> str:
    """An e-mail address in the one spelling in which two of the same person are equal."""
    # One letter can be written as one character or as two.
    text = address.casefold()
    return text if text.isascii() else normalize("NFC", text)


def milestone(document: dict[str, Any]) -> str | None:
    """The milestone that a `video.watched` document reports; None where it names none we know."""
    data = document.get("data")
    value = data.get("milestone") if isinstance(data, dict) else None
    return value if value in MILESTONES else None


def engagement(kind: str, document: dict[str, Any]) -> Engagement:
    """Read what an event of this kind says of a video's audience."""
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
    data = document.get("data")
    viewer = data.get("viewer") if isinstance(data, dict) else None
    email = _text(viewer if isinstance(viewer, dict) else data, "email")
    return None if email is None else folded(email.strip()) or None
