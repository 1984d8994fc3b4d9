"""The samples follow the sender's documentation and hold no real address."""

import re
from random import Random
from typing import Any

import orjson
import pytest

from relay.core import event, sample_events


def data(kind: str, seed: int = 0) -> dict[str, Any]:
    document = sample_events.event(kind, seed=seed).document()
    assert isinstance(document["data"], dict)
    return document["data"]


@pytest.mark.parametrize("kind", event.KINDS)
def test_a_body_is_the_documented_envelope(kind: str) -> None:
    raw = sample_events.body(
        kind, event_id="evt_1", created_at="2026-01-02T03:04:05Z", random=Random(1)
    )
    document = orjson.loads(raw)
    assert list(document) == ["id", "event", "createdAt", "data"]
    assert document["id"] == "evt_1"
    assert document["event"] == kind
    assert document["createdAt"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("video.created", "id title"),
        ("video.ready", "id title status version durationSeconds width height errorMessage"),
        ("video.failed", "id title status version durationSeconds width height errorMessage"),
        ("video.deleted", "id title trashed"),
        ("video.watched", "video viewer progress milestone completed"),
        ("lead.captured", "id email name fields video createdAt"),
    ],
)
def test_data_has_the_documented_fields(kind: str, fields: str) -> None:
    assert set(data(kind)) == set(fields.split())


def test_progress_milestone_and_completed_agree_and_all_five_occur() -> None:
    milestones = set()
    for sample in sample_events.series("video.watched"):
        watched = sample.document()["data"]
        assert watched["progress"] == event.PROGRESS[watched["milestone"]]
        assert watched["completed"] is (watched["milestone"] == "completed")
        milestones.add(watched["milestone"])
    assert milestones == set(event.MILESTONES)


def test_addresses_are_under_reserved_names_only() -> None:
    every = b"".join(sample.body for kind in event.KINDS for sample in sample_events.series(kind))
    addresses = re.findall(rb'"[^"@]*@[^"]*"', every)
    assert len(addresses) > 20
    for address in addresses:
        assert re.fullmatch(rb'"[a-z.]+@(studio\.)?example\.(com|org)"', address)


def test_the_same_seed_makes_the_same_bytes_and_another_does_not() -> None:
    def lead(seed: int) -> bytes:
        return sample_events.body(
            "lead.captured", event_id="e", created_at="t", random=Random(seed)
        )

    assert lead(7) == lead(7)
    assert len({lead(seed) for seed in range(20)}) == 20


def test_the_fields_of_an_event_equal_those_of_its_body() -> None:
    sample = sample_events.event("video.ready", source="main", event_id="evt_9")
    document = sample.document()
    assert (sample.source, sample.id, sample.kind) == ("main", "evt_9", "video.ready")
    assert (document["id"], document["event"]) == ("evt_9", "video.ready")
    assert document["createdAt"] == sample.created_at


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no sample of .video\.liked..*lead\.captured"):
        sample_events.body("video.liked", event_id="e", created_at="t", random=Random(1))
