"""Payloads of one event: in full, in one line, and in the plainest form."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from relay.core.event import Event
from relay.outbound.template import Value
from relay.sinks.slack import escaping
from relay.sinks.slack.blocks import Block, context, describe, header, mrkdwn, plain, table
from relay.sinks.slack.escaping import clean, moment
from relay.sinks.slack.history import history_blocks
from relay.sinks.slack.summary import Summary, at, summarize

_FALLBACK_MAX = 300
_LATEST_S = 4_102_444_800  # the year 2100


def message(event: Event) -> dict[str, Any]:
    """Return the built-in message; valid whatever the event holds."""
    story = summarize(event.kind, _data(event))
    notes = [context([plain(story.note)])] if story.note else []
    top = header(f"{story.icon} {story.headline}")
    body = [top, *table(story.facts), *notes]
    return payload(_line(story, event), [*body, *history_blocks(event), origin(event)])


def plain_message(event: Event) -> dict[str, Any]:
    """Return the payload for an event whose content Slack refuses: its kind and ids alone."""
    video = _bare(_video_id(event))
    about = f"{_bare(event.kind)} for video {video}" if video else _bare(event.kind)
    about = f"{about} (reconstructed)" if event.reconstructed else about
    pieces = (f"{about}, event ", Value(event.id), ": its details could not be shown here.")
    return payload("".join(escaping.mrkdwn(pieces)), [])


def payload(text: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return a message without link previews; `text` is escaped mrkdwn."""
    bare: dict[str, Any] = {"text": text, "unfurl_links": False, "unfurl_media": False}
    return bare | {"blocks": list(blocks)} if blocks else bare


def fallback(event: Event) -> str:
    """Return the line for notifications and screen readers, escaped."""
    return _line(summarize(event.kind, _data(event)), event)


def origin(event: Event) -> Block:
    """Return the last block of every message: time, source, video and event id."""
    video = describe(_video_id(event), limit=100)
    about = [f"Video {video}"] if video else []
    details = [f"Source {event.source}", *about, f"Event {event.id}", *_mark(event)]
    return context([mrkdwn(stamp(event)), *map(plain, details)])


def _mark(event: Event) -> list[str]:
    return ["Reconstructed after an outage"] if event.reconstructed else []


def _line(story: Summary, event: Event) -> str:
    mark = " (reconstructed)" if event.reconstructed else ""
    line = clean(story.headline + story.aside, limit=_FALLBACK_MAX - len(mark)) + mark
    return "".join(escaping.mrkdwn([Value(line)]))


def _data(event: Event) -> object:
    return event.document().get("data")


def _video_id(event: Event) -> object:
    data = _data(event)
    own = at(data, "id") if event.kind.startswith("video.") else None
    return at(data, "video", "id") or own


def _bare(value: object) -> str:
    # Only characters that neither a parser nor a reader can misread.
    return re.sub(r"[^A-Za-z0-9._:-]", "", describe(value, limit=100))


def stamp(event: Event) -> str:
    """Return the time of creation, or else of receipt, in each reader's time zone (mrkdwn)."""
    at_s = _created_s(event.created_at)
    at_s = event.received_ms // 1000 if at_s is None else at_s
    return moment(at_s)


def _created_s(text: str | None) -> int | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    at_s = int(moment.timestamp()) if moment.tzinfo else -1
    return at_s if 0 <= at_s < _LATEST_S else None
