"""An original and its reconstruction state the same facts, and so have the same ids."""

from typing import Any

import pytest

from relay.core import reconstruction
from relay.core.event import KINDS, WEBHOOK_TEST
from relay.core.sample_events import event

THEN = "2026-03-02T09:30:00.000Z"
VIEWER = {"video": {"id": "vid_1"}, "viewer": {"email": "ada@example.com"}, "milestone": "25%"}
LEAD = {"id": "lead_1", "email": "ada@example.com", "video": {"id": "vid_1"}, "createdAt": THEN}


def ids(kind: str, data: object) -> tuple[str, ...]:
    return reconstruction.ids(kind, {"data": data})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != WEBHOOK_TEST])
def test_every_kind_but_a_test_can_be_reconstructed(kind: str) -> None:
    sample = event(kind)
    found = reconstruction.ids(kind, sample.document())
    assert found
    assert all(each.startswith(reconstruction.PREFIX) for each in found)


def test_a_test_event_states_nothing() -> None:
    assert ids(WEBHOOK_TEST, {}) == ()


def test_titles_names_and_the_spelling_of_an_address_make_no_difference() -> None:
    other: dict[str, Any] = VIEWER | {
        "video": {"id": "vid_1", "title": "Tour"},
        "viewer": {"email": " ADA@example.com", "name": "Ada"},
        "progress": 25,
    }
    assert ids("video.watched", other) == ids("video.watched", VIEWER)


@pytest.mark.parametrize(
    "change",
    [
        {"milestone": "50%"},
        {"video": {"id": "vid_2"}},
        {"viewer": {"email": "bob@example.com"}},
    ],
)
def test_another_fact_has_another_id(change: dict[str, object]) -> None:
    assert ids("video.watched", VIEWER | change) != ids("video.watched", VIEWER)


def test_a_lead_is_known_by_its_id_or_else_by_its_form() -> None:
    by_id, by_form = ids("lead.captured", LEAD)
    assert ids("lead.captured", LEAD | {"id": None}) == (by_form,)
    assert ids("lead.captured", LEAD | {"createdAt": "then"}) == (by_id,)


def test_versions_and_trash_are_told_apart() -> None:
    video = {"id": "vid_1"}
    assert ids("video.ready", video | {"version": 1}) != ids("video.ready", video | {"version": 2})
    assert ids("video.deleted", video | {"trashed": True}) != ids(
        "video.deleted", video | {"trashed": False}
    )


def moved(created_at: str) -> tuple[str, ...]:
    document = {"createdAt": created_at, "data": {"id": "vid_1", "trashed": True}}
    return reconstruction.ids("video.deleted", document)


def test_two_moves_of_a_restored_video_to_trash_are_told_apart() -> None:
    assert not set(moved(THEN)) & set(moved("2026-03-02T09:50:00.000Z"))


@pytest.mark.parametrize("written", ["2026-03-02T09:29:59.999Z", "2026-03-02T09:34:00.000Z"])
def test_clocks_may_differ_about_a_move_to_trash(written: str) -> None:
    made, *_ = moved(THEN)
    assert made in moved(written)


@pytest.mark.parametrize("data", [None, [], {}, {"video": 7}, {"video": {"id": "vid_1"}}])
def test_an_event_that_states_nothing_has_no_id(data: object) -> None:
    assert ids("video.watched", data) == ()


@pytest.mark.parametrize(
    ("kind", "data", "change"),
    [
        ("video.created", {}, "created"),
        ("video.ready", {"version": 3}, "ready 3"),
        ("video.failed", {"version": 1}, "failed 1"),
        ("video.ready", {"version": "<b>"}, "ready 0"),
        ("video.ready", {"version": True}, "ready 0"),
        ("video.deleted", {"trashed": True}, "trashed"),
        ("video.deleted", {}, "deleted"),
        ("video.watched", {}, None),
        ("video.created", None, None),
    ],
)
def test_a_change_of_a_video_has_a_name(kind: str, data: object, change: str | None) -> None:
    assert reconstruction.change_of(kind, {"data": data}) == change


def test_the_time_of_an_event_needs_a_zone() -> None:
    assert reconstruction.occurred_ms({"createdAt": THEN}) == 1_772_443_800_000
    assert reconstruction.occurred_ms({"createdAt": "2026-03-02T09:30:00"}) is None
    assert reconstruction.occurred_ms({}) is None
