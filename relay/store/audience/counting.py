"""Rows of the audience that are derived from events' bodies, some time after acceptance."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from relay.core.event import engagement
from relay.core.reconstruction import change_of, occurred_ms
from relay.store.audience.writes import AudienceWrites, Changed, CountedView
from relay.store.rows import document_of

STEP_ROWS = 100
STEP_BYTES = 1 << 20
"""Limits per transaction, because other writes wait for its end."""

CATCH_UP_STEPS = 100
"""Maximum number of steps that a query waits for."""

ID_CHARS = 200
_TITLE_CHARS = 300


class Digests(Protocol):
    """Keyed digests of addresses."""

    def number(self, address: str) -> int: ...


class Uncounted(NamedTuple):
    """An event that the audience has not counted; no body where it cannot be of interest."""

    seq: int
    source: str
    kind: str
    received_ms: int
    body: bytes | None
    is_reconstructed: bool


class _Mention(NamedTuple):
    """An event with a document, and the video that it names."""

    event: Uncounted
    at_ms: int
    video: str | None
    title: str | None
    step: str | None
    person: str | None
    change: str | None


def count(tables: AudienceWrites, events: Sequence[Uncounted], digests: Digests) -> None:
    """Add the views, leads and changes of events; the last one is then the last counted one."""
    mentions = [mention for event in events if (mention := _read(event)) is not None]
    titles: dict[str, str | None] = {}
    for each in mentions:
        if each.video is not None:
            titles[each.video] = each.title or titles.get(each.video)
    numbers = tables.name_videos(titles)
    tables.add_views([view for each in mentions if (view := _view(each, numbers, digests))])
    tables.add_changes([change for each in mentions if (change := _change(each, numbers))])
    tables.set_counted_to(events[-1].seq)


def person_of(kind: str, body: bytes | None, digests: Digests) -> int | None:
    """Return the person whom `count` will count for an event."""
    document = document_of(body)
    if document is None:
        return None
    step, _, _, person = engagement(kind, document)
    return None if step is None or person is None else digests.number(person)


def _read(event: Uncounted) -> _Mention | None:
    document = document_of(event.body)
    if document is None:
        return None
    at_ms = (occurred_ms(document) if event.is_reconstructed else None) or event.received_ms
    step, video, title, person = engagement(event.kind, document)
    return _Mention(
        event,
        at_ms,
        None if video is None else video[:ID_CHARS],
        title[:_TITLE_CHARS] if title else None,
        step,
        person,
        change_of(event.kind, document),
    )


def _view(mention: _Mention, numbers: Mapping[str, int], digests: Digests) -> CountedView | None:
    event, step = mention.event, mention.step
    if step is None:
        return None
    video = None if mention.video is None else numbers.get(mention.video)
    person = None if mention.person is None else digests.number(mention.person)
    return CountedView(event.seq, event.source, video, step, person, mention.at_ms)


def _change(mention: _Mention, numbers: Mapping[str, int]) -> Changed | None:
    event, video = mention.event, mention.video
    if mention.change is None or video is None or video not in numbers:
        return None
    return Changed(event.source, numbers[video], mention.change, event.seq, mention.at_ms)
