"""What a person has watched fits into a header of any destination, and can be read from it."""

import json
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core.event import Event
from relay.core.watch_history import WatchedVideo, WatchHistory
from relay.outbound import cloudevents, message, watched

TOUR = WatchedVideo(id="vid_1", title="Tour", milestone="75%", last_ms=1_772_443_800_000)
HISTORY = WatchHistory.of([TOUR, WatchedVideo(id="vid_2")])

videos = st.lists(
    st.builds(
        WatchedVideo,
        id=st.text(),
        title=st.none() | st.text(),
        milestone=st.sampled_from([None, "started", "completed"]),
        last_ms=st.none() | st.integers(),
    ),
    max_size=30,
)


def test_the_json_says_what_how_far_and_when() -> None:
    assert json.loads(watched.text(HISTORY)) == {
        "videos": 2,
        "lastWatchedAt": "2026-03-02T09:30:00.000Z",
        "watched": [
            {
                "id": "vid_1",
                "title": "Tour",
                "milestone": "75%",
                "lastWatchedAt": "2026-03-02T09:30:00.000Z",
            },
            {"id": "vid_2"},
        ],
    }


@given(videos, st.sampled_from([1024, watched.TEXT_MAX_BYTES]))
def test_any_history_is_a_bounded_header_value_in_ascii(
    seen: list[WatchedVideo], limit: int
) -> None:
    text = watched.text(WatchHistory.of(seen), max_bytes=limit)
    encoded = cloudevents.header_value(text)
    assert text.isascii()
    assert text.isprintable()
    assert len(encoded) <= limit
    assert unquote(encoded) == text
    assert json.loads(text)["videos"] == len(seen)


def test_the_videos_watched_last_are_those_that_fit() -> None:
    many = WatchHistory.of(
        WatchedVideo(id=f"v{number}", title="ü" * 90, last_ms=number) for number in range(20)
    )
    shown = json.loads(watched.text(many))
    assert 0 < len(shown["watched"]) < 20
    assert shown["watched"][0]["id"] == "v19"
    assert shown["videos"] == 20


@pytest.mark.parametrize(
    ("form", "name"), [("raw", "relay-watched"), ("cloudevents", "ce_relaywatched")]
)
def test_each_format_has_its_own_name_for_it(lead: Event, form: message.Format, name: str) -> None:
    with_history = message.headers(replace(lead, watch_history=HISTORY), form, prefix="ce_")
    without = message.headers(lead, form, prefix="ce_")
    assert set(with_history) - set(without) == {name}
    assert with_history[name] == watched.text(HISTORY)
