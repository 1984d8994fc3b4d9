"""Our own messages: what they say, and that nothing typed by a stranger can break or bend them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.core import sample_events
from relay.core.event import KINDS, Event
from relay.sinks.slack.message import fallback, message, plain_message
from tests.sinks.slack.limits import check, texts

UNKNOWN = "video.liked"
EVERY_KIND = (*KINDS, UNKNOWN)


def event(kind: str, data: object, **envelope: object) -> Event:
    document = {"id": "evt_1", "event": kind, "data": data, **envelope}
    created = envelope.get("createdAt")
    return Event(
        source="main",
        id="evt_1",
        kind=kind,
        created_at=created if isinstance(created, str) else None,
        received_ms=1_772_443_800_000,
        body=json.dumps(document).encode(),
    )


def said(payload: dict[str, Any]) -> str:
    return "\n".join(text["text"] for text in texts(payload))


def everywhere(text: object) -> dict[str, Any]:
    """Data of every kind at once, with the same value wherever someone can type."""
    return {
        "id": "vid_1",
        "title": text,
        "email": text,
        "name": text,
        "status": text,
        "errorMessage": text,
        "video": {"id": "vid_1", "title": text},
        "viewer": {"email": text, "name": text},
        "fields": {"company": text, str(text): text},
        "milestone": text,
        "progress": text,
        "durationSeconds": text,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_makes_a_message_that_slack_takes(kind: str) -> None:
    for sample in sample_events.series(kind):
        payload = message(sample)
        check(payload)
        check(plain_message(sample))
        assert payload["text"] == fallback(sample)
        assert f"Event {sample.id}" in said(payload)
        assert f"Source {sample.source}" in said(payload)


def test_a_lead_shows_name_address_form_and_video() -> None:
    data = {
        "name": "Ada & Co",
        "email": "ada@example.com",
        "fields": {"jobTitle": "CTO", "team_size": "1-10", "newsletter": True, "empty": ""},
        "video": {"id": "vid_7", "title": "Tour"},
    }
    payload = message(event("lead.captured", data))
    head, grid, small = payload["blocks"]
    assert head["text"]["text"] == "👋 New lead: Ada & Co"
    assert [cell["text"] for cell in grid["fields"]] == [
        *("*Email*", "<mailto:ada@example.com|ada@example.com>"),
        *("*Job title*", "CTO", "*Team size*", "1-10", "*Newsletter*", "yes"),
        *("*Video*", "Tour"),
    ]
    assert payload["text"] == "New lead: Ada &amp; Co, ada@example.com"
    assert [part["text"] for part in small["elements"]][1:] == [
        "Source main",
        "Video vid_7",
        "Event evt_1",
    ]


@pytest.mark.parametrize(
    ("data", "headline"),
    [
        ({"email": "ada@example.com"}, "New lead: ada@example.com"),
        ({"name": "", "email": None}, "New lead"),
        (None, "New lead"),
    ],
)
def test_a_lead_without_a_name_is_still_one(data: object, headline: str) -> None:
    assert message(event("lead.captured", data))["text"] == headline


def test_form_fields_as_a_list_of_named_values_are_shown_too() -> None:
    fields = [{"name": "company", "value": "Contoso"}, {"label": "Team", "value": 9}]
    shown = said(message(event("lead.captured", {"fields": fields})))
    assert "*Company*\nContoso\n*Team*\n9" in shown


def test_a_long_answer_gets_the_whole_width() -> None:
    story = "We are nine people and would like to see how it works. " * 3
    payload = message(event("lead.captured", {"name": "Ada", "fields": {"message": story}}))
    assert payload["blocks"][1]["text"]["text"] == "*Message*"
    assert payload["blocks"][2]["text"] == {
        "type": "plain_text",
        "text": story.strip(),
        "emoji": False,
    }


def test_the_first_of_two_hundred_form_fields_are_shown_and_the_rest_counted() -> None:
    fields = {f"field{n}": "v" * 50 for n in range(200)}
    payload = message(event("lead.captured", {"name": "Ada", "fields": fields}))
    check(payload)
    assert "Field0" in said(payload)
    assert "Not shown here: 180 more fields." in said(payload)


@pytest.mark.parametrize("value", ["\\" * 5000, "&" * 5000, "😀" * 5000, '"' * 5000, "é" * 5000])
def test_the_longest_values_together_still_fit(value: str) -> None:
    fields = {f"{n}{value}": value for n in range(50)}
    for kind in EVERY_KIND:
        data = everywhere(value) | {"fields": fields}
        long = event(kind, data if kind in KINDS else fields)
        check(message(long))
        check(plain_message(long))


@pytest.mark.parametrize(
    ("milestone", "progress", "words", "bar"),
    [
        ("started", 0, "started", "░░░░░░░░ 0%"),
        ("25%", 25, "watched 25% of", "██░░░░░░ 25%"),
        ("50%", 50, "watched 50% of", "████░░░░ 50%"),
        ("75%", 75, "watched 75% of", "██████░░ 75%"),
        ("completed", 100, "finished", "████████ 100%"),
        ("nearly", 90, "watched 90% of", "███████░ 90%"),
    ],
)
def test_a_milestone_shows_viewer_video_and_a_bar(
    milestone: str, progress: int, words: str, bar: str
) -> None:
    data = {
        "viewer": {"name": "Ada", "email": "ada@example.com"},
        "video": {"id": "vid_1", "title": "Tour"},
        "milestone": milestone,
        "progress": progress,
    }
    payload = message(event("video.watched", data))
    assert payload["text"] == f"Ada {words} “Tour”"
    assert f"*Progress*\n{bar}" in said(payload)
    assert "<mailto:ada@example.com|" in said(payload)


@pytest.mark.parametrize("progress", [True, -1, 101, "50", None, 1.5, [50]])
def test_an_invalid_progress_makes_no_bar(progress: object) -> None:
    payload = message(event("video.watched", {"milestone": ["25%"], "progress": progress}))
    assert payload["text"] == "Someone watched a video"
    assert "Progress" not in said(payload)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("video.created", {"title": "Tour"}, "New video: Tour"),
        ("video.ready", {"title": "Tour", "version": 1}, "Video ready: Tour"),
        ("video.ready", {"title": "Tour", "version": 2}, "Video ready again: Tour"),
        ("video.failed", {"title": "Tour"}, "Video could not be processed: Tour"),
        ("video.deleted", {"title": "Tour", "trashed": True}, "Video moved to Trash: Tour"),
        ("video.deleted", {"title": "Tour", "trashed": False}, "Video deleted for good: Tour"),
        ("video.deleted", {"title": "Tour"}, "Video deleted: Tour"),
        ("video.created", {"title": ""}, "New video: untitled"),
        ("webhook.test", {}, "Test event received"),
        (UNKNOWN, {"likes": 3}, "Event video.liked"),
    ],
)
def test_the_headline_says_what_happened(kind: str, data: object, expected: str) -> None:
    assert message(event(kind, data))["text"] == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"durationSeconds": 59}, "*Length*\n0:59 min"),
        ({"durationSeconds": 3725.9}, "*Length*\n1:02:05 h"),
        ({"durationSeconds": "long"}, "*Length*\nlong"),
        ({"width": 1920, "height": 1080}, "*Resolution*\n1920 x 1080"),
        ({"errorMessage": "no sound"}, "*Remark*\nno sound"),
    ],
)
def test_a_ready_video_shows_its_facts(data: object, expected: str) -> None:
    assert expected in said(message(event("video.ready", data)))


def test_a_title_too_long_for_the_header_is_shown_in_full_below() -> None:
    title = "A long title of a video " * 5
    for kind, data in (("video.created", {"title": title}), ("video.failed", {"title": title})):
        assert f"*Title*\n{title.strip()}" in said(message(event(kind, data)))


@pytest.mark.parametrize(
    ("created", "seconds"),
    [
        ("2026-03-02T09:30:00.000Z", 1_772_443_800),
        ("2026-03-02T10:30:00+01:00", 1_772_443_800),
        ("2026-01-01T00:00:00", 1_772_443_800),
        ("yesterday", 1_772_443_800),
        ("0001-01-01T00:00:00+14:00", 1_772_443_800),
        ("9999-12-31T23:59:59-14:00", 1_772_443_800),
        (None, 1_772_443_800),
        (17, 1_772_443_800),
    ],
)
def test_the_time_is_the_senders_or_else_that_of_the_receipt(created: object, seconds: int) -> None:
    small = message(event("webhook.test", {}, createdAt=created))["blocks"][-1]
    assert small["elements"][0]["text"].startswith(f"<!date^{seconds}^")


def test_an_unknown_event_shows_its_data_plainly() -> None:
    data = {"likes": 3, "by": {"name": "Ada"}, "tags": ["a", "b"], "none": None}
    shown = said(message(event(UNKNOWN, data)))
    assert '*Likes*\n3\n*By*\n{"name":"Ada"}\n*Tags*\na, b\n' in shown
    assert "None" not in shown


# slack.md, section 6, row by row.
HOSTILE = {
    "1 channel": "<!channel> <!here> <!everyone>",
    "2 link": "<https://evil.example|Approve refund>",
    "3 bare url": "https://evil.example evil.example",
    "4 backtick": "`` ` ``` <https://evil.example|x> `",
    "5 line breaks": "Ada\n*Status*: paid\r\nx\u2028y\u2029z\x0bq\x85w",
    "6 mention": "<@U123> <!subteam^S1> <#C1> <!date^1^{date}^https://evil.example|x>",
    "7 long": "x" * 100_000,
    "7 empty": "",
    "7 blank": " \u200b\u3164 \n",
    "8 invisible": "a\u202eb\u2066c\u200bd\x00e\x9bf\ufeffg\u00adh\U000e0041i",
    "9 emoji and bold": ":tada: *bold* _it_ ~no~",
    "entities": "&lt;!channel&gt; &amp;lt;",
    "mailto": "a@b.example|<!channel>",
    "mailto break": "a@b.example>\n<!here>",
}


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("row", HOSTILE)
def test_nothing_that_a_stranger_types_acts(kind: str, row: str) -> None:
    payload = message(event(kind, everywhere(HOSTILE[row])))
    check(payload)
    check(plain_message(event(kind, everywhere(HOSTILE[row]))))
    assert "\n" not in payload["text"]


def test_what_a_stranger_types_is_never_in_a_text_with_markup_but_for_labels() -> None:
    payload = message(event("lead.captured", everywhere("*zz* https://zz.example :zz:")))
    marked = [text["text"] for text in texts(payload) if text["type"] == "mrkdwn"]
    assert [text for text in marked if "zz" in text] == ["*zz https://zz.example :zz:*"]


def test_invisible_characters_are_removed_and_visible_ones_stay() -> None:
    payload = message(event("lead.captured", {"name": HOSTILE["8 invisible"]}))
    assert payload["text"] == "New lead: abcdefghi"


def test_an_event_id_and_a_source_can_be_anything_printable() -> None:
    odd = Event(
        source="<!here>",
        id="<!channel>" * 25,
        kind="<!everyone>",
        created_at=None,
        received_ms=0,
        body=b"{}",
    )
    check(message(odd))
    check(plain_message(odd))
    assert f"Event {odd.id}" in said(message(odd))


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize(
    "data",
    [None, [], "text", 7, True, [[[[]]]], {"video": [], "viewer": 3, "fields": 4, "title": {}}],
)
def test_data_of_any_shape_makes_a_message(kind: str, data: object) -> None:
    check(message(event(kind, data)))
    check(plain_message(event(kind, data)))


def test_data_nested_more_deeply_than_can_be_written_makes_a_message() -> None:
    deep: object = "end"
    for _ in range(600):
        deep = [deep]
    for kind in EVERY_KIND:
        check(message(event(kind, everywhere("x") | {"title": deep, "fields": deep})))


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from([*everywhere(""), "label", "value", "key", "trashed", "version", "width"])
DATA = ANY_JSON | st.dictionaries(
    NAMES, ANY_JSON | st.dictionaries(NAMES, ANY_JSON, max_size=4), max_size=10
)


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=40, deadline=None)
@given(data=DATA)
def test_any_json_in_data_makes_a_message_that_slack_takes(kind: str, data: object) -> None:
    try:
        odd = event(kind, data)
        odd.document()
    except ValueError:
        return  # a lone surrogate or an infinity: not JSON that a receiver lets in
    check(message(odd))
    check(plain_message(odd))
