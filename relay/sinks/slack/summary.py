"""Summaries of events for readers in a channel: who and what first."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from relay.core.event import LEAD_CAPTURED, PROGRESS, VIDEO_WATCHED, WEBHOOK_TEST
from relay.sinks.slack.blocks import TOTAL_MAX, Fact, address, describe, fact, mrkdwn, room_for

FORM_ROWS = 20
"""Maximum number of fields shown of a form, or of an event of unknown kind."""

_FORM_ROOM = TOTAL_MAX - 3_000
"""The rest is for the header, the facts beside the form, and the small print."""

_WHO_MAX = 60
_TITLE_MAX = 70
_REASON_MAX = 1000
_FULL = 100
_WORD_START = re.compile(r"(?<=[a-z0-9])([A-Z])(?=[a-z])")


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One event for a reader; `aside` joins the headline if only one line is shown."""

    icon: str
    headline: str
    facts: tuple[Fact, ...] = ()
    aside: str = ""
    note: str = ""


def summarize(kind: str, data: object) -> Summary:
    """Return the summary of an event; never fails, whatever `data` is."""
    story = _STORIES.get(kind)
    return _unknown(kind, data) if story is None else story(data)


def at(value: object, *path: str) -> object:
    """Return the value at a path, or None."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _lead(data: object) -> Summary:
    email = describe(at(data, "email"), limit=_WHO_MAX)
    who = describe(at(data, "name"), limit=_WHO_MAX)
    form, note = _form(at(data, "fields"))
    video = fact("Video", at(data, "video", "title"), limit=300)
    return Summary(
        icon="👋",
        headline=f"New lead: {who or email}" if who or email else "New lead",
        facts=(*address("Email", at(data, "email")), *form, *video),
        aside=f", {email}" if who and email else "",
        note=note,
    )


def _watched(data: object) -> Summary:
    name, email = at(data, "viewer", "name"), at(data, "viewer", "email")
    who = describe(name, limit=_WHO_MAX) or describe(email, limit=_WHO_MAX) or "Someone"
    percent = _percent(data)
    how = {None: "watched", 0: "started", _FULL: "finished"}.get(percent, f"watched {percent}% of")
    headline = f"{who} {how} {_quoted(at(data, 'video', 'title'))}"
    return Summary(
        icon="🏁" if percent == _FULL else "▶️",
        headline=headline,
        facts=(
            *([] if percent is None else [Fact("Progress", mrkdwn(_bar(percent)))]),
            *_beyond(headline, "Viewer", name),
            *address("Email", email),
            *_beyond(headline, "Video", at(data, "video", "title")),
        ),
    )


def _ready(data: object) -> Summary:
    version = at(data, "version")
    is_again = isinstance(version, int) and version > 1
    return _about_video(
        "✅",
        "Video ready again" if is_again else "Video ready",
        data,
        *fact("Length", _length(at(data, "durationSeconds"))),
        *fact("Resolution", _pixels(at(data, "width"), at(data, "height"))),
        *(fact("Version", version) if is_again else ()),
        *fact("Remark", at(data, "errorMessage"), limit=_REASON_MAX),
    )


def _failed(data: object) -> Summary:
    reason = fact("Reason", at(data, "errorMessage"), limit=_REASON_MAX)
    return _about_video("⚠️", "Video could not be processed", data, *reason)


def _deleted(data: object) -> Summary:
    match at(data, "trashed"):
        case True:
            how = "moved to Trash"
        case False:
            how = "deleted for good"
        case _:
            how = "deleted"
    return _about_video("🗑️", f"Video {how}", data)


def _tested(_: object) -> Summary:
    return Summary(
        icon="🔔",
        headline="Test event received",
        note="The way from the video service through the relay to this channel works.",
    )


def _unknown(kind: str, data: object) -> Summary:
    rows, note = _form(data)
    return Summary(icon="📨", headline=f"Event {kind}", facts=rows, note=note)


def _about_video(icon: str, what: str, data: object, *facts: Fact) -> Summary:
    title = at(data, "title")
    headline = f"{what}: {describe(title, limit=_TITLE_MAX) or 'untitled'}"
    return Summary(icon=icon, headline=headline, facts=(*facts, *_beyond(headline, "Title", title)))


_STORIES: dict[str, Callable[[object], Summary]] = {
    "video.created": partial(_about_video, "🎬", "New video"),
    "video.ready": _ready,
    "video.failed": _failed,
    "video.deleted": _deleted,
    VIDEO_WATCHED: _watched,
    LEAD_CAPTURED: _lead,
    WEBHOOK_TEST: _tested,
}


def _beyond(headline: str, label: str, value: object) -> list[Fact]:
    """Return the fact, unless the headline contains it."""
    text = describe(value, limit=300)
    return [] if text in headline else fact(label, text, limit=300)


def _form(fields: object) -> tuple[tuple[Fact, ...], str]:
    """Return the first rows of a form, and a note about the rest."""
    pairs = _pairs(fields)
    rows: list[Fact] = []
    room = _FORM_ROOM
    for place, (name, value) in enumerate(pairs):
        for row in fact(_spoken(name), value):
            room -= room_for(row)
            if room < 0 or len(rows) == FORM_ROWS:
                left = len(pairs) - place
                return tuple(rows), f"Not shown here: {left} more field{'s' * (left > 1)}."
            rows.append(row)
    return tuple(rows), ""


def _pairs(fields: object) -> list[tuple[str, Any]]:
    # The sender documents only the name `fields`: it may be an object, or a list of named values.
    match fields:
        case dict():
            return list(fields.items())
        case list() if all(isinstance(field, dict) and "value" in field for field in fields):
            return [(_name(field), field["value"]) for field in fields]
    return [("Details", fields)]


def _name(field: dict[str, Any]) -> str:
    return describe(field.get("label") or field.get("name") or field.get("key"), limit=100)


def _spoken(name: str) -> str:
    """Return `jobTitle` and `job_title` as `Job title`."""
    words = _WORD_START.sub(lambda match: " " + match[1].lower(), name[:300])
    words = re.sub(r"[_\s]+", " ", words).strip()
    return words[:1].upper() + words[1:]


def _quoted(title: object) -> str:
    text = describe(title, limit=_TITLE_MAX)
    return f"“{text}”" if text else "a video"


def _percent(data: object) -> int | None:
    milestone, progress = at(data, "milestone"), at(data, "progress")
    if isinstance(milestone, str) and milestone in PROGRESS:
        return PROGRESS[milestone]
    if isinstance(progress, bool) or not isinstance(progress, int):
        return None
    return progress if 0 <= progress <= _FULL else None


def _bar(percent: int) -> str:
    full = percent * 8 // _FULL  # eight cells, so that every quarter shows
    return f"{'█' * full}{'░' * (8 - full)} {percent}%"


def _length(seconds: object) -> str:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 0:
        return describe(seconds, limit=50)
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def _pixels(width: object, height: object) -> str:
    known = isinstance(width, int) and isinstance(height, int)
    return f"{width} x {height}" if known else ""
