"""Digests: what they say of a burst, and that no stranger can break or bend one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.event import KINDS, MILESTONES, Event
from relay.sinks.slack.digest import EVENTS_MAX, LEADS_MAX, VIDEOS_MAX, digest, share
from tests.sinks.slack.limits import check, texts
from tests.sinks.slack.test_message import everywhere, said


def event(kind: str, data: object, *, event_id: str = "evt_1") -> Event:
    document = {"id": event_id, "event": kind, "data": data}
    return Event(
        source="main",
        id=event_id,
        kind=kind,
        created_at=None,
        received_ms=1_772_443_800_000,
        body=json.dumps(document).encode(),
    )


def watched(video: str, milestone: str) -> Event:
    data = {"video": {"id": video, "title": f"Title of {video}"}, "milestone": milestone}
    return event("video.watched", data)


def lead(name: str, email: str = "ada@example.com") -> Event:
    data = {"name": name, "email": email, "video": {"id": "v", "title": "Product tour"}}
    return event("lead.captured", data)


def rows(payload: dict[str, Any]) -> list[str]:
    return [text["text"] for text in texts(payload)]


def test_a_digest_counts_the_steps_of_each_video_the_most_watched_first() -> None:
    views = [watched("a", "started")] + [watched("b", name) for name in ("started", "50%")] * 3
    payload = digest([*views, watched("b", "completed")])
    check(payload)
    shown = rows(payload)
    assert shown.index("*Title of b*") < shown.index("*Title of a*")
    assert "3 started, 3 50%, 1 completed" in shown
    assert payload["text"] == "8 events: 8 steps watched"


def test_every_lead_of_a_digest_has_its_own_entry() -> None:
    leads = [lead(f"Person {number}", f"p{number}@example.com") for number in range(LEADS_MAX)]
    payload = digest([*leads, watched("a", "started")])
    check(payload)
    for number in range(LEADS_MAX):
        line = f"👋 Person {number}, p{number}@example.com (Product tour)"
        assert rows(payload).count(line) == 1


def test_a_digest_names_the_first_and_the_last_event() -> None:
    first = event("video.ready", {"id": "v"}, event_id="evt_first")
    last = event("video.ready", {"id": "v"}, event_id="evt_last")
    assert "Events evt_first to evt_last" in said(digest([first, first, last]))


def test_events_other_than_leads_and_views_are_counted_by_kind() -> None:
    many = [event("video.ready", {})] * 3 + [event("video.liked", {})]
    payload = digest(many)
    check(payload)
    shown = rows(payload)
    assert shown[shown.index("*video.ready*") + 1] == "3"
    assert payload["text"] == "4 events: 4 other events"


def test_more_videos_than_fit_are_summed_up() -> None:
    payload = digest([watched(f"v{number}", "started") for number in range(VIDEOS_MAX + 5)])
    check(payload)
    assert "*5 more videos*" in rows(payload)
    assert "5 steps watched" in rows(payload)


def test_a_digest_takes_no_more_leads_than_it_can_show() -> None:
    leads = [lead("Ada")] * (LEADS_MAX + 1)
    assert share(leads) == LEADS_MAX
    assert share([watched("a", "started"), *leads]) == LEADS_MAX + 1
    assert share([watched("a", "started")] * 1000) == EVENTS_MAX
    assert share([lead("Ada")]) == 1


@pytest.mark.parametrize("kind", [*KINDS, "video.liked"])
@pytest.mark.parametrize("data", [None, [], "text", {}, {"video": None}, {"viewer": 7}])
def test_a_digest_of_odd_events_is_a_valid_message(kind: str, data: object) -> None:
    check(digest([event(kind, data)] * 7))


@given(
    text=st.text(max_size=400) | st.just("<!channel> & <@U1> *b* `c`\n" * 40),
    kinds=st.lists(st.sampled_from([*KINDS, "x" * 255]), min_size=2, max_size=40),
    milestone=st.sampled_from([*MILESTONES, "99%"]),
)
def test_no_stranger_can_break_or_bend_a_digest(
    text: str, kinds: list[str], milestone: str
) -> None:
    data = {**everywhere(text), "milestone": milestone}
    burst = [event(kind, data) for kind in kinds]
    check(digest(burst[: share(burst)]))


def test_the_fullest_digest_is_within_slacks_limits() -> None:
    wide = "\U0001f600" * 300
    leads = [lead(wide, f"{'a' * 60}@example.com") for _ in range(LEADS_MAX)]
    views = [
        event("video.watched", {"video": {"id": f"v{n}", "title": wide}, "milestone": name})
        for n in range(40)
        for name in MILESTONES
    ]
    others = [event(f"kind{number}.{'k' * 240}", {}) for number in range(20)]
    burst = [*leads, *views, *others]
    assert share(burst) == len(burst)
    check(digest(burst))
