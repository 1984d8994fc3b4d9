"""What arrives: an `Event`, made only by `inbound.authenticate` or read back from the store."""

import hashlib
from typing import Any, Literal, cast
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
        document = self.document()
        data = document.get("data")
        if not isinstance(data, dict):
            return None
        video = data.get("video", data if self.kind.startswith("video.") else None)
        found = video.get("id") if isinstance(video, dict) else None
        return found if isinstance(found, str) else None

    def person(self) -> str | None:
        """The e-mail address of the viewer or the lead (video-service.md, section 6), folded."""
        data = self.document().get("data")
        if not isinstance(data, dict):
            return None
        viewer = data.get("viewer")
        found = (viewer if isinstance(viewer, dict) else data).get("email")
        return folded(found.strip()) or None if isinstance(found, str) else None

    def milestone(self) -> str | None:
        """The milestone that a `video.watched` reports; None where it is none that we know."""
        return milestone(self.document()) if self.kind == VIDEO_WATCHED else None

    @property
    def known_kind(self) -> str:
        """The kind, or `other` for one that the sender's document does not list."""
        return self.kind if self.kind in KINDS else "other"


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
