"""What a lead's person has watched, as a header, an attribute or a member of a message.

It is JSON in ASCII, because header values take nothing else everywhere.
"""

import json
from typing import Any, Literal

from relay.core.event import Event, rfc3339_or_none
from relay.core.watch_history import WatchedVideo, WatchHistory

HEADER = "relay-watched"

ATTRIBUTE = "relaywatched"
"""CloudEvents 1.0, section 3.1.1: an extension's name has lower-case letters and digits only."""

TEXT_MAX_BYTES = 2048
"""Maximum length of the JSON, percent-encoded or not: a head has room for 8 KiB in many servers."""

NOT_SHOWN = "what the person has watched is asked when the message is sent, and not shown here"
"""Said where the message of a sink with `enrich` is shown without being sent."""

_WHEN_ENCODED = str.maketrans({'"': "%22", "%": "%25", " ": "%20"})


def headers(event: Event, form: Literal["raw", "cloudevents"], *, prefix: str) -> dict[str, str]:
    """Return a header with the event's watch history, none where it has no history.

    `prefix` is the CloudEvents binding's.
    """
    return limited(event, form, prefix=prefix, max_bytes=TEXT_MAX_BYTES)


def limited(
    event: Event, form: Literal["raw", "cloudevents"], *, prefix: str, max_bytes: int
) -> dict[str, str]:
    """Return the same header for a destination that takes shorter values."""
    if event.watch_history is None:
        return {}
    name = HEADER if form == "raw" else prefix + ATTRIBUTE
    return {name: text(event.watch_history, max_bytes=max_bytes)}


def document(history: WatchHistory) -> dict[str, Any]:
    """Return a history as JSON values, with all the videos that it has."""
    return {
        "videos": history.count,
        "lastWatchedAt": rfc3339_or_none(history.last_ms),
        "watched": [_video(video) for video in history.videos],
    }


def text(history: WatchHistory, *, max_bytes: int = TEXT_MAX_BYTES) -> str:
    """Return a history as JSON, with as many videos as fit, those watched last first."""
    whole = document(history)
    while True:
        written = json.dumps(whole, separators=(",", ":"))
        if len(written.translate(_WHEN_ENCODED)) <= max_bytes or not whole["watched"]:
            return written
        whole["watched"].pop()


def _video(video: WatchedVideo) -> dict[str, Any]:
    named = {
        "id": video.id,
        "title": video.title,
        "milestone": video.milestone,
        "lastWatchedAt": rfc3339_or_none(video.last_ms),
    }
    return {name: value for name, value in named.items() if value is not None}
