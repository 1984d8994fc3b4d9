"""Sample events of all seven kinds, in the video service's format (video-service.md, section 6).

Every address is under example.com or example.org.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import orjson
from msgspec.structs import replace

from relay.core.event import (
    KINDS,
    LEAD_CAPTURED,
    MILESTONES,
    PROGRESS,
    VIDEO_WATCHED,
    WEBHOOK_TEST,
    Event,
    rfc3339,
)
from relay.core.watch_history import WatchedVideo, WatchHistory

CREATED_AT = "2026-03-02T09:30:00.000Z"
_CREATED_AT_MS = 1_772_443_800_000

WATCHED = WatchHistory.of(
    [
        WatchedVideo(
            id="vid_sample",
            title="Product tour in four minutes",
            milestone="75%",
            last_ms=_CREATED_AT_MS,
        ),
        WatchedVideo(id="vid_untitled"),
    ]
)
"""What a sample's person has watched."""

_PEOPLE = (
    ("ada.moreau", "Ada Moreau"),
    ("bongani.dube", "Bongani Dube"),
    ("chloe.lefevre", "Chloé Lefèvre"),
    ("daniel.oconnor", "Daniel O'Connor"),
    ("esra.ozdemir", "Esra Özdemir"),
    ("fatima.alsayed", "Fatima Al-Sayed"),
    ("hiroshi.tanaka", "Hiroshi Tanaka"),
    ("ingrid.sorensen", "Ingrid Sørensen"),
    ("jurgen.gross", "Jürgen Groß"),
    ("mariajose.nunez", "María José Núñez"),
    ("zoe.vanderberg", "Zoë van der Berg"),
    ("hello", "李 明"),
)
_TITLES = (
    "Product tour in four minutes",
    "Customer story: Northwind & Sons",
    "Webinar: pricing that people understand",
    "Onboarding, part 1: your first project",
    "What's new in spring",
    "Von der Idee zum Film",
    "Q&A with the founders",
    "Security and compliance <for IT teams>",
)
_FIELDS = (
    ("company", ("Northwind & Sons", "Umbrella Studio", "Contoso GmbH", "Atelier 12")),
    ("jobTitle", ("Head of Marketing", "CTO", "Product Manager", "Sales Development Rep")),
    ("phone", ("+49 30 5550 0101", "+1 202 555 0143", "+33 1 99 00 12 34")),
    ("teamSize", ("1-10", "11-50", "51-200", "more than 200")),
    ("message", ("Please call me next week.", "Do you offer a trial?\nWe are a team of nine.")),
    ("newsletter", (True, False)),
)
_MARKED = frozenset({"name", "title"})
"""Fields that a person reads first."""

_SIZES = ((1280, 720), (1920, 1080), (1080, 1920), (3840, 2160))
_FAULTS = (
    "The file has no video or audio track.",
    "The file ends before its index; it may not have been sent completely.",
    "The codec 'prores_raw' is not supported.",
)


def body(kind: str, *, event_id: str, created_at: str, random: Random) -> bytes:
    """Return the raw body of a request; raises ValueError for an unknown kind."""
    if kind not in _DATA:
        raise ValueError(f"no sample of {kind!r}; expected one of: {', '.join(KINDS)}")
    data = _DATA[kind](random, created_at)
    return orjson.dumps({"id": event_id, "event": kind, "createdAt": created_at, "data": data})


def event(
    kind: str,
    *,
    source: str = "sample",
    event_id: str = "evt_sample",
    created_at: str = CREATED_AT,
    seed: int = 0,
) -> Event:
    """Return a sample, the same one for the same arguments; raises ValueError as `body` does."""
    random = Random(f"{kind} {seed}")
    return Event(
        source=source,
        id=event_id,
        kind=kind,
        created_at=created_at,
        received_ms=_CREATED_AT_MS,
        body=body(kind, event_id=event_id, created_at=created_at, random=random),
        headers=b"content-type: application/json\r\nuser-agent: Service-Webhooks/1\r\n",
    )


def marked(kind: str, *, source: str, event_id: str, at_ms: int) -> Event:
    """Return a sample that people recognise as a test; raises ValueError as `body` does."""
    sample = event(kind, source=source, event_id=event_id, created_at=rfc3339(at_ms))
    document = sample.document()
    _mark(document["data"])
    return replace(sample, received_ms=at_ms, body=orjson.dumps(document))


def _mark(data: dict[str, Any]) -> None:
    for name, value in data.items():
        if isinstance(value, dict):
            _mark(value)
        elif name in _MARKED:
            data[name] = f"[TEST] {value}"


def series(kind: str, *, source: str = "sample") -> tuple[Event, ...]:
    """Return enough samples of one kind to cover every milestone and every optional field."""
    return tuple(event(kind, source=source, seed=seed) for seed in range(24))


def _video(random: Random) -> dict[str, Any]:
    return {"id": f"vid_{random.randrange(16**12):012x}", "title": random.choice(_TITLES)}


def _person(random: Random) -> dict[str, Any]:
    mailbox, name = random.choice(_PEOPLE)
    domain = random.choice(("example.com", "example.org", "studio.example.com"))
    return {"email": f"{mailbox}@{domain}", "name": name}


def _processed(random: Random, status: str, fault: str | None = None) -> dict[str, Any]:
    width, height = random.choice(_SIZES) if fault is None else (None, None)
    return _video(random) | {
        "status": status,
        "version": random.choice((1, 1, 1, 2, 3)) if fault is None else 1,
        "durationSeconds": random.randrange(20, 5400) if fault is None else None,
        "width": width,
        "height": height,
        "errorMessage": fault,
    }


def _watched(random: Random) -> dict[str, Any]:
    milestone = MILESTONES[random.randrange(len(MILESTONES))]
    return {
        "video": _video(random),
        "viewer": _person(random),
        "progress": PROGRESS[milestone],
        "milestone": milestone,
        "completed": milestone == "completed",
    }


def _lead(random: Random, created_at: str) -> dict[str, Any]:
    chosen = sorted(random.sample(range(len(_FIELDS)), k=random.randint(2, len(_FIELDS))))
    return {
        "id": f"lead_{random.randrange(16**12):012x}",
        **_person(random),
        "fields": {name: random.choice(values) for name, values in (_FIELDS[i] for i in chosen)},
        "video": _video(random),
        "createdAt": created_at,
    }


_DATA: dict[str, Callable[[Random, str], dict[str, Any]]] = {
    "video.created": lambda random, _: _video(random),
    "video.ready": lambda random, _: _processed(random, "ready"),
    "video.failed": lambda random, _: _processed(random, "failed", random.choice(_FAULTS)),
    "video.deleted": lambda random, _: _video(random) | {"trashed": random.random() < 0.7},
    VIDEO_WATCHED: lambda random, _: _watched(random),
    LEAD_CAPTURED: _lead,
    WEBHOOK_TEST: lambda *_: {},
}
