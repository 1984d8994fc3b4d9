"""The line of a lead's message that says what the person has watched."""

from relay.core.event import Event
from relay.core.watch_history import WatchedVideo
from relay.sinks.slack.blocks import Block, context, describe, mrkdwn, plain
from relay.sinks.slack.escaping import moment

SHOWN_MAX = 3
"""Videos that are named; the line would be more than one otherwise."""

_TITLE_MAX = 60
_LINE_MAX = 300


def history_blocks(event: Event) -> list[Block]:
    """Return one line, or none where nothing is known of the person."""
    history = event.watch_history
    if history is None or not history.count:
        return []
    named = [_named(video) for video in history.videos[:SHOWN_MAX]]
    rest = history.count - len(named)
    if rest:
        named.append(videos(rest, "more "))
    watched = plain(f"👀 Watched so far: {', '.join(named)}", limit=_LINE_MAX)
    if history.last_ms is None:
        return [context([watched])]
    return [context([watched, mrkdwn(f"Last visit {moment(history.last_ms // 1000)}")])]


def videos(count: int, which: str = "") -> str:
    """Return a number of videos in words; `which` goes before the noun."""
    return f"{count} {which}video{'s' * (count != 1)}"


def _named(video: WatchedVideo) -> str:
    title = describe(video.title or video.id, limit=_TITLE_MAX) or "a video"
    return f"“{title}”" + (f" ({video.milestone})" if video.milestone else "")
