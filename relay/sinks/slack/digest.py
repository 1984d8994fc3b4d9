"""One message for many events: leads listed one by one, all others counted.

slack.md, sections 4 and 8.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from relay.core.event import LEAD_CAPTURED, MILESTONES, VIDEO_WATCHED, Event, milestone
from relay.sinks.slack.blocks import (
    FIELDS_MAX,
    Block,
    Fact,
    context,
    describe,
    header,
    mrkdwn,
    plain,
    table,
)
from relay.sinks.slack.history import videos
from relay.sinks.slack.message import payload, stamp
from relay.sinks.slack.summary import at

EVENTS_MAX = 256
LEADS_MAX = 30
"""Maximum number of leads in one message, a line each; more go into the next."""

VIDEOS_MAX = 12
KINDS_MAX = 10

_LEAD_MAX = 140
_TITLE_MAX = 70


def share(events: Sequence[Event]) -> int:
    """Return the number of events, from the first on, that fit into one digest."""
    leads = 0
    for place, event in enumerate(events[:EVENTS_MAX]):
        leads += event.kind == LEAD_CAPTURED
        if leads > LEADS_MAX:
            return place
    return min(len(events), EVENTS_MAX)


def digest(events: Sequence[Event]) -> dict[str, Any]:
    """Return the payload for events in order of receipt; valid whatever they hold."""
    leads = [event for event in events if event.kind == LEAD_CAPTURED]
    views = [event for event in events if event.kind == VIDEO_WATCHED]
    others = [event for event in events if event.kind not in (LEAD_CAPTURED, VIDEO_WATCHED)]
    parts = [
        *_counted(len(leads), "new lead"),
        *_counted(len(views), "step watched", "steps watched"),
        *_counted(len(others), "other event"),
    ]
    reconstructed = sum(event.reconstructed for event in events)
    mark = f" ({reconstructed} of them reconstructed after an outage)" if reconstructed else ""
    headline = f"{len(events)} events: {', '.join(parts)}{mark}"
    blocks = [
        header(f"🧾 {headline}"),
        *_leads(leads),
        *table(_views(views)),
        *table(_others(others)),
    ]
    return payload(headline, [*blocks, _origin(events)])


def _counted(count: int, one: str, many: str = "") -> list[str]:
    return [f"{count} {one if count == 1 else many or one + 's'}"] if count else []


def _leads(events: Sequence[Event]) -> list[Block]:
    lines = [plain(_lead(event), limit=_LEAD_MAX) for event in events]
    return [
        {"type": "section", "fields": lines[start : start + FIELDS_MAX]}
        for start in range(0, len(lines), FIELDS_MAX)
    ]


def _lead(event: Event) -> str:
    data = event.document().get("data")
    name = describe(at(data, "name"), limit=50)
    email = describe(at(data, "email"), limit=60)
    video = describe(at(data, "video", "title"), limit=40)
    who = ", ".join(part for part in (name, email) if part) or "a lead without a name"
    history = event.watch_history
    seen = f", {videos(history.count)} watched" if history and history.count else ""
    return f"👋 {who}" + (f" ({video})" if video else "") + seen


def _views(events: Sequence[Event]) -> list[Fact]:
    """Return a row per video, the most watched first, with its funnel."""
    steps: defaultdict[str, Counter[str]] = defaultdict(Counter)
    titles: dict[str, str] = {}
    for event in events:
        document = event.document()
        video = event.video_id() or ""
        steps[video][milestone(document) or "watched"] += 1
        title = describe(at(document.get("data"), "video", "title"), limit=_TITLE_MAX)
        titles[video] = title or titles.get(video, "") or describe(video, limit=_TITLE_MAX)
    order = sorted(steps, key=lambda video: -steps[video].total())
    rows = [
        Fact(titles[video] or "a video", plain(_funnel(steps[video])))
        for video in order[:VIDEOS_MAX]
    ]
    rest = sum(steps[video].total() for video in order[VIDEOS_MAX:])
    if rest:
        more = len(order) - VIDEOS_MAX
        rows.append(Fact(videos(more, "more "), plain(f"{rest} steps watched")))
    return rows


def _funnel(steps: Counter[str]) -> str:
    return ", ".join(f"{steps[name]} {name}" for name in (*MILESTONES, "watched") if steps[name])


def _others(events: Sequence[Event]) -> list[Fact]:
    counts = Counter(event.kind for event in events)
    rows = [Fact(kind, plain(str(count))) for kind, count in counts.most_common(KINDS_MAX)]
    rest = counts.total() - sum(count for _, count in counts.most_common(KINDS_MAX))
    return [*rows, *([Fact("other kinds", plain(str(rest)))] if rest else [])]


def _origin(events: Sequence[Event]) -> Block:
    """Return the last block: times, sources, and the ids of the first and last event."""
    first, last = events[0], events[-1]
    sources = ", ".join(sorted({event.source for event in events}))
    return context(
        [
            mrkdwn(f"{stamp(first)} to {stamp(last)}"),
            plain(f"Source {sources}", limit=200),
            plain(f"Events {first.id} to {last.id}", limit=600),
        ]
    )
