"""An event's CloudEvents attributes as headers."""

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from relay.core import sample_events
from relay.core.event import KINDS, WEBHOOK_TEST, Event
from relay.outbound import cloudevents

RECEIVED = "2026-03-02T09:30:00.123Z"


def attributes(event: Event) -> dict[str, str]:
    return dict(cloudevents.headers(event))


@given(st.text())
def test_a_header_value_is_plain_ascii_and_reversible(text: str) -> None:
    value = cloudevents.header_value(text)
    assert re.fullmatch(r"[\x21-\x7e]*", value)
    assert '"' not in value
    assert unquote(value) == text


def test_the_specification_s_own_example_comes_out_the_same() -> None:
    assert cloudevents.header_value("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


def test_text_that_a_header_can_carry_is_unchanged() -> None:
    assert cloudevents.header_value("evt_01:a/b~c,d") == "evt_01:a/b~c,d"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_required_attributes(kind: str) -> None:
    found = attributes(sample_events.event(kind, source="main", event_id="evt_1"))
    assert found["ce-specversion"] == "1.0"
    assert (found["ce-id"], found["ce-source"], found["ce-type"]) == ("evt_1", "main", kind)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != WEBHOOK_TEST])
def test_the_subject_is_the_video(kind: str) -> None:
    event = sample_events.event(kind)
    data = event.document()["data"]
    assert attributes(event)["ce-subject"] == data.get("video", data)["id"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"event":"lead.captured","data":{"id":"lead_1"}}',
        b'{"event":"video.ready","data":{"id":7}}',
        b'{"event":"video.ready","data":["id"]}',
        b'{"event":"video.ready"}',
        b'{"event":"video.watched","data":{"video":"v"}}',
    ],
)
def test_without_a_video_there_is_no_subject(lead: Event, body: bytes) -> None:
    assert "ce-subject" not in attributes(replace(lead, body=body))


@pytest.mark.parametrize(
    "time",
    [
        "2026-03-02T09:30:00Z",
        "2026-03-02T09:30:00.5Z",
        "2026-03-02T09:30:00.123456789+01:00",
        "2026-03-02t09:30:00z",
    ],
)
def test_the_time_is_the_sender_s_where_it_is_one(lead: Event, time: str) -> None:
    assert attributes(replace(lead, created_at=time))["ce-time"] == time


@pytest.mark.parametrize(
    "time",
    [
        None,
        "",
        "yesterday",
        "2026-03-02",
        "2026-03-02 09:30:00Z",
        "2026-03-02T09:30:00",
        "2026-13-02T09:30:00Z",
        "2026-03-02T25:30:00Z",
        "1772443800",
        "2026-03-02T09:30:00Z\n",
    ],
)
def test_the_time_of_receipt_replaces_a_missing_time(lead: Event, time: str | None) -> None:
    event = replace(lead, created_at=time, received_ms=1_772_443_800_123)
    assert attributes(event)["ce-time"] == RECEIVED


def test_a_source_with_odd_letters_is_still_a_uri_reference(lead: Event) -> None:
    found = attributes(replace(lead, source="our shop"))
    assert unquote(found["ce-source"]) == "our%20shop"
