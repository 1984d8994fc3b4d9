"""An event consists of its raw bytes and the values of its envelope."""

import hashlib

import pytest

from relay.core import sample_events
from relay.core.event import (
    KINDS,
    LEAD_CAPTURED,
    MILESTONES,
    VIDEO_WATCHED,
    Engagement,
    Event,
    Unreadable,
    engagement,
    milestone,
    rfc3339,
    rfc3339_or_none,
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_the_senders_document_is_known(kind: str) -> None:
    assert sample_events.event(kind).known_kind == kind


@pytest.mark.parametrize("kind", ["video.transcribed", "Video.Ready", "video.ready ", ""])
def test_any_other_kind_counts_as_other(kind: str) -> None:
    event = Event(source="a", id="1", kind=kind, created_at=None, received_ms=0, body=b"{}")
    assert event.known_kind == "other"


def test_editing_a_document_changes_no_event(lead: Event) -> None:
    lead.document()["data"]["email"] = "changed"
    assert lead.document()["data"]["email"] != "changed"


def test_an_event_cannot_be_changed(lead: Event) -> None:
    with pytest.raises(AttributeError):
        lead.id = "another"  # type: ignore[misc]


@pytest.mark.parametrize("expected", MILESTONES)
def test_a_milestone_is_read_from_the_data(expected: str) -> None:
    assert milestone({"data": {"milestone": expected}}) == expected


def test_every_sample_of_a_watched_video_reports_a_milestone() -> None:
    reached = {milestone(event.document()) for event in sample_events.series(VIDEO_WATCHED)}
    assert reached == set(MILESTONES)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"data": None},
        {"data": []},
        {"data": "milestone"},
        {"data": {}},
        {"data": {"milestone": None}},
        {"data": {"milestone": 25}},
        {"data": {"milestone": "25"}},
        {"data": {"milestone": "Completed"}},
        {"data": {"milestone": ["25%"]}},
        {"data": {"milestone": {"25%": 1}}},
        {"milestone": "25%"},
    ],
)
def test_an_unknown_milestone_is_none(document: dict[str, object]) -> None:
    assert milestone(document) is None


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("video.ready", b'{"data": {"id": "vid_1"}}', "vid_1"),
        ("video.watched", b'{"data": {"id": "view_1", "video": {"id": "vid_1"}}}', "vid_1"),
        ("lead.captured", b'{"data": {"id": "lead_1", "video": {"id": "vid_1"}}}', "vid_1"),
        ("lead.captured", b'{"data": {"id": "lead_1"}}', None),
        ("lead.captured", b'{"data": {"id": "lead_1", "video": null}}', None),
        ("video.ready", b'{"data": {"id": 1}}', None),
        ("video.ready", b'{"data": []}', None),
        ("video.ready", b"{}", None),
    ],
)
def test_the_video_is_named_by_its_id(kind: str, body: bytes, expected: str | None) -> None:
    event = Event(source="a", id="1", kind=kind, created_at=None, received_ms=0, body=body)
    assert event.video_id() == expected


def test_an_unreadable_request_is_identified_by_the_digest_of_its_body() -> None:
    request = Unreadable(source="main", received_ms=0, body=b"[]", headers=b"", reason="no object")
    assert request.digest == hashlib.sha256(b"[]").digest()
    assert request.digest.hex().startswith(request.short_id)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        (
            VIDEO_WATCHED,
            {"video": {"id": "v", "title": "t"}, "viewer": {"email": " A@x "}, "milestone": "25%"},
            Engagement("25%", "v", "t", "a@x"),
        ),
        (
            LEAD_CAPTURED,
            {"video": {"id": "v"}, "email": "a@x"},
            Engagement("lead", "v", None, "a@x"),
        ),
        ("video.ready", {"id": "v", "title": "t"}, Engagement(None, "v", "t", None)),
        ("video.ready", None, Engagement(None, None, None, None)),
    ],
)
def test_engagement_holds_the_step_the_video_and_the_person(
    kind: str, data: object, expected: Engagement
) -> None:
    assert engagement(kind, {"data": data}) == expected


def test_an_address_is_kept_as_received_beside_the_folded_person() -> None:
    body = b'{"data": {"email": " Ada@Example.COM "}}'
    event = Event(source="a", id="1", kind=LEAD_CAPTURED, created_at=None, received_ms=0, body=body)
    assert (event.address(), event.person()) == ("Ada@Example.COM", "ada@example.com")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_772_443_800_007, "2026-03-02T09:30:00.007Z"),
        (1_772_443_800_999, "2026-03-02T09:30:00.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_time_is_exact_to_the_millisecond(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


def test_an_unknown_time_has_no_text() -> None:
    assert rfc3339_or_none(None) is None
    assert rfc3339_or_none(0) == rfc3339(0)
