"""Totals equal the accepted events, whatever was refused or removed."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import orjson
import pytest
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.core.event import KINDS, MILESTONES, VIDEO_WATCHED, Event
from relay.core.totals import Total
from relay.store import Store
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, settlement
from tests.store.erasing import erase
from tests.store.places import Place

Label = tuple[str, str, str]
"""Source, kind and milestone."""

SOURCES = ("main", "academy")
DAY_MS = 86_400_000


KEPT: dict[str, Any] = {
    "payload_retention": Duration.parse("1d"),
    "dedupe_retention": Duration.parse("2d"),
}


def event(
    event_id: str, kind: str, *, source: str = "main", at_ms: int = NOW_MS, **data: object
) -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": data})
    return Event(
        source=source, id=event_id, kind=kind, created_at=None, received_ms=at_ms, body=body
    )


def any_events(random: Random, count: int) -> list[Event]:
    """Events of all kinds, some with odd milestones, and some more than once."""
    made = [
        event(
            f"evt_{random.randrange(count)}",
            random.choice((*KINDS, VIDEO_WATCHED, VIDEO_WATCHED, "video.liked")),
            source=random.choice(SOURCES),
            at_ms=NOW_MS + random.randrange(1000),
            milestone=random.choice((*MILESTONES, "90%", 50, None, {"a": 1}, ["50%"])),
        )
        for _ in range(count)
    ]
    return [
        msgspec.structs.replace(one, body=b'{"data":["50%"]}') if random.random() < 0.1 else one
        for one in made
    ]


def expected(events: Sequence[Event]) -> dict[Label, tuple[int, int]]:
    """The first event of each identity, counted by hand."""
    first = {(one.source, one.id): one for one in reversed(events)}.values()
    counts = Counter(map(label, first))
    return {
        each: (count, max(one.received_ms for one in first if label(one) == each))
        for each, count in counts.items()
    }


def label(one: Event) -> Label:
    data = one.document().get("data")
    found = data.get("milestone") if isinstance(data, dict) else None
    if one.kind != VIDEO_WATCHED or found not in MILESTONES:
        found = ""
    return one.source, one.kind if one.kind in KINDS else "other", str(found)


def held(store: Store) -> dict[Label, tuple[int, int]]:
    return {
        (total.source, total.kind, total.milestone): (total.events, total.last_ms)
        for source in SOURCES
        for total in store.totals(source)
    }


@pytest.mark.parametrize("seed", range(5))
async def test_totals_are_those_of_the_accepted_events_also_after_a_restart(
    place: Place, clock: ManualClock, seed: int
) -> None:
    random = Random(seed)
    events = any_events(random, 300)
    async with place.open(clock, **KEPT) as store:
        left = list(events)
        while left:
            batch = [left.pop(0) for _ in range(min(len(left), random.randrange(1, 90)))]
            await accept(store, *batch, verdicts=random.choice(([], [TAKES], [TAKES, OTHER])))
        assert held(store) == expected(events)
    async with place.open(clock, **KEPT) as store:
        assert held(store) == expected(events)


async def test_the_callback_of_totals_is_called_once_per_new_event(
    place: Place, clock: ManualClock
) -> None:
    seen: list[Total] = []
    async with place.open(clock, counted=lambda total: seen.append(replace(total))) as store:
        lead = event("a", "lead.captured")
        await accept(store, lead, lead, event("b", "lead.captured", at_ms=NOW_MS - 5))
        await accept(store, lead)
    leads = ("main", "lead.captured", "")
    assert seen == [Total(*leads, 1, NOW_MS), Total(*leads, 2, NOW_MS)]


async def test_retention_and_erasure_do_not_change_the_totals(
    place: Place, clock: ManualClock
) -> None:
    async with place.open(clock, **KEPT) as store:
        await accept(
            store, event("a", "lead.captured", email="ann@example.com"), event("b", "lead.captured")
        )
        await erase(store, "ann@example.com", now_ms=NOW_MS)
        leased = await store.lease("sales", now_ms=NOW_MS, limits={"live": 9})
        for delivery in leased.deliveries:
            await store.settle(settlement(delivery))
        while await store.expire(now_ms=NOW_MS + 3 * DAY_MS):
            pass
    async with place.open(clock, **KEPT) as store:
        assert held(store) == {("main", "lead.captured", ""): (2, NOW_MS)}
