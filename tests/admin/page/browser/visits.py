"""Events of people who watch videos and leave their addresses, the same for the same seed."""

from collections.abc import Iterator
from random import Random
from typing import Any

import orjson

from relay.core.event import MILESTONES, PROGRESS

PEOPLE = 60
TITLES = (
    "Product tour in four minutes",
    "Customer story: Northwind & Sons",
    "Webinar: pricing that people understand",
    "Onboarding, part 1: your first project",
)


def events(random: Random, visits: int) -> Iterator[bytes]:
    """People who watch a video for some time, some of whom leave their address."""
    for _ in range(visits):
        number = random.randrange(PEOPLE)
        watched = video(min(int(random.expovariate(0.9)), len(TITLES) - 1))
        for step in range(min(int(random.expovariate(0.5)) + 1, len(MILESTONES))):
            yield _event(
                _identifier(random),
                "video.watched",
                {
                    "video": watched,
                    "viewer": _person(number) if random.random() < 0.8 else None,
                    "progress": PROGRESS[MILESTONES[step]],
                    "milestone": MILESTONES[step],
                    "completed": MILESTONES[step] == "completed",
                },
            )
        if random.random() < 0.25:
            is_subscriber = random.random() < 0.5
            yield lead_of(_identifier(random), number, is_subscriber=is_subscriber, video=watched)
    if random.random() < 0.1:
        kind = random.choice(("video.created", "video.ready", "video.failed"))
        yield _event(_identifier(random), kind, {**watched, "errorMessage": None})


def lead_of(identifier: str, number: int, *, is_subscriber: bool, video: dict[str, str]) -> bytes:
    fields = {"company": "Northwind & Sons", "newsletter": is_subscriber}
    data = {"id": f"lead_{number}", **_person(number), "fields": fields, "video": video}
    return _event(identifier, "lead.captured", data)


def _event(identifier: str, kind: str, data: dict[str, Any]) -> bytes:
    return orjson.dumps({"id": identifier, "event": kind, "createdAt": None, "data": data})


def _identifier(random: Random) -> str:
    return f"evt_{random.randrange(16**12):012x}"


def _person(number: int) -> dict[str, str]:
    return {"email": f"visitor{number:02}@example.com", "name": f"Visitor {number}"}


def video(index: int) -> dict[str, str]:
    return {"id": f"vid_{index}be3a10c77f{index}", "title": TITLES[index]}
