"""A filter means the same everywhere, compared with a naive implementation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from relay.core.delivery import Result
from relay.core.event import Event
from relay.core.routing import Route, Verdict
from relay.store import search
from relay.store.selection import Outcome, Selection
from relay.store.sqlite import search as sqlite_search
from tests.conftest import NOW_MS
from tests.delivery.replaying import Bench, event, replaying
from tests.store.conformance import settlement
from tests.virtual_time import VirtualLoop, still_while_the_store_works

ROUTES = (
    Route("all"),
    Route("leads", events=["lead.*"]),
    Route("big", when="data.n > `4`"),
    Route("second", sources=["second"]),
)
SINKS = (*(each.sink for each in ROUTES), "retired")
KINDS = ("lead.captured", "video.ready", "video.watched")
RESULTS: tuple[Result | None, ...] = ("delivered", "dead", "dead", "retry", None)
REASONS = ("the mailbox is full", "422: refused")
DAY_MS = 86_400_000
EVENTS = 60
SELECTIONS = 40
PAGE = 7


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture(autouse=True)
def _still() -> Iterator[None]:
    with still_while_the_store_works():
        yield


@dataclass
class Stored:
    """An event with its expected properties."""

    seq: int
    event: Event
    has_body: bool = True
    status: dict[str, str] = field(default_factory=dict)
    reason: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.event.body)["data"]
        return found

    def is_meant(self, selection: Selection) -> bool:
        """Match the fields that do not concern deliveries."""
        one = self.event
        return (
            selection.id in (None, one.id)
            and one.id.startswith(selection.id_prefix or "")
            and selection.source in (None, one.source)
            and fnmatchcase(one.kind, selection.kind or "*")
            and one.received_ms >= (selection.since_ms or 0)
            and one.received_ms < (selection.until_ms or NOW_MS * 2)
            and self.seq < (selection.before or EVENTS * 2)
            and (selection.email is None or self._has(email=selection.email))
            and (selection.video is None or self._has(video=selection.video))
            and (selection.person is None or self._is_ada)
            and (selection.words is None or self._holds(selection.words))
        )

    @property
    def _is_ada(self) -> bool:
        """Whether the audience counts it for Ada, which it does before the body expires."""
        return self.event.kind == "lead.captured" and self.data["email"].lower().startswith("ada@")

    def _holds(self, words: str) -> bool:
        text = self.event.body.decode().lower()
        return self.has_body and all(word.lower() in text for word in words.split())

    def _has(self, *, email: str | None = None, video: str | None = None) -> bool:
        found = self.data.get("video", {}).get("id"), self.data.get("email", "").lower()
        return self.has_body and (video == found[0] or (email or "-").lower() == found[1])

    def fitting(self, selection: Selection) -> set[str]:
        """Sinks with a matching delivery; for `missed`, also those without one."""
        if selection.outcome == "missed":
            return {
                sink
                for sink in self.takers(selection)
                if self.status.get(sink) not in ("pending", "delivered")
            }
        return {
            sink
            for sink, status in self.status.items()
            if selection.sink in (None, sink)
            and selection.outcome in (None, status)
            and (selection.reason is None or status == "dead")
            and (selection.reason or "") in self.reason.get(sink, "")
        }

    def takers(self, selection: Selection) -> set[str]:
        """Configured sinks whose routes take it."""
        return {
            each.sink
            for each in ROUTES
            if selection.sink in (None, each.sink)
            and self.has_body
            and each.evaluate(self.event).outcome == "takes"
        }

    def replayed(self, selection: Selection) -> set[str]:
        takers = self.takers(selection)
        if selection.names_deliveries:
            takers &= self.fitting(selection)
        return {sink for sink in takers if self.status.get(sink) != "pending"}


async def fill(bench: Bench, random: Random) -> list[Stored]:
    """Accept events for other sinks than the current routes would choose."""
    model = []
    for number in range(1, EVENTS + 1):
        is_old = random.random() < 0.2
        data = {
            "n": random.randrange(10),
            "email": random.choice(["Ada@example.com", "bob@example.com"]),
            "video": {"id": random.choice(["vid_1", "vid_2"])},
        }
        made = event(
            number,
            kind=random.choice(KINDS),
            at_ms=NOW_MS - 40 * DAY_MS if is_old else NOW_MS - random.randrange(5) * 1000,
            **data,
        )
        known = Stored(number, replace_source(made, random.choice(["main", "second"])))
        sinks = [sink for sink in SINKS if random.random() < 0.5]
        verdicts = [Verdict(sink, "takes", "") for sink in sinks]
        await bench.store.accept(known.event, verdicts, lambda _: None)
        known.status = dict.fromkeys(sinks, "pending")
        model.append(known)
    for sink in SINKS:
        await settle(bench, model, sink, random)
    while await bench.store.expire(now_ms=NOW_MS):
        pass
    for known in model:
        is_settled = "pending" not in known.status.values()
        known.has_body = not (is_settled and known.event.received_ms < NOW_MS - 30 * DAY_MS)
    return model


def replace_source(made: Event, source: str) -> Event:
    return Event(
        **{**{name: getattr(made, name) for name in Event.__struct_fields__}, "source": source}
    )


async def settle(bench: Bench, model: Sequence[Stored], sink: str, random: Random) -> None:
    limits: Mapping[Any, int] = {"live": EVENTS}
    lease = await bench.store.lease(sink, now_ms=NOW_MS, limits=limits)
    for each in lease.deliveries:
        known = model[each.seq - 1]
        result, reason = random.choice(RESULTS), random.choice(REASONS)
        if result is None:
            bench.store.release([each])
            continue
        reason = "" if result == "delivered" else reason
        known.reason[sink] = reason
        await bench.store.settle(settlement(each, result, reason=reason))
        known.status[sink] = "pending" if result == "retry" else result
        if result == "dead" and random.random() < 0.3:
            one = Selection(id=each.event.id, source=each.event.source, sink=sink)
            assert await bench.store.dead_letters.discard(one, now_ms=NOW_MS) == 1
            known.status[sink] = "discarded"


def choose(random: Random, ada: str) -> Selection:
    """A filter with one to four fields, mostly about deliveries."""
    outcomes: list[Outcome] = ["pending", "delivered", "dead", "discarded", "missed", "missed"]
    every: dict[str, Any] = {
        "id": f"e{random.randrange(EVENTS):05}",
        "id_prefix": random.choice(["e0", "e0000", "e0001", "x"]),
        "source": random.choice(["main", "second"]),
        "kind": random.choice(["video.*", "lead.captured", "*.w*", "*"]),
        "since_ms": NOW_MS - random.randrange(4) * 1000,
        "until_ms": NOW_MS - random.randrange(4) * 1000,
        "before": random.randrange(1, EVENTS),
        "video": "vid_1",
        "email": "ADA@example.com",
        "person": ada,
        "words": random.choice(["VID_1", "vid_2 bob@", "nowhere"]),
        "sink": random.choice(SINKS),
        "outcome": random.choice(outcomes),
        "reason": random.choice(["full", "422", "nonsense"]),
    }
    names = random.choices(list(every), weights=[1] * 11 + [4] * 3, k=random.randrange(5))
    selection = Selection(**{name: every[name] for name in names})
    return selection if selection.contradiction is None else replace(selection, reason=None)


@pytest.mark.servers
@pytest.mark.parametrize("seed", range(3))
async def test_list_search_count_and_replay_agree_on_a_filter(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "STEP_ROWS", 5)
    monkeypatch.setattr(sqlite_search, "PREFIXED_MAX", 10)
    monkeypatch.setattr(search, "OVERRUN_S", 10)
    monkeypatch.setattr(search, "MARGIN_MS", 41 * DAY_MS)
    random = Random(seed)
    async with replaying(tmp_path, *SINKS) as bench:
        bench.replayer.routes = ROUTES
        model = await fill(bench, random)
        before = bench.statuses()
        ada = bench.store.audience.person(" Ada@EXAMPLE.com")
        for _ in range(SELECTIONS):
            selection = choose(random, ada)
            meant = [each for each in reversed(model) if each.is_meant(selection)]
            listed = [
                each.seq
                for each in meant
                if each.fitting(selection) or not selection.names_deliveries
            ]
            assert await pages(bench, selection) == listed, selection
            assert await searched(bench, selection) == listed, selection
            count = await bench.store.search.count(selection, ROUTES, budget_s=9)
            assert (count.events, count.complete) == (len(listed), True), selection
            await compare_dead_letters(bench, selection, meant)
            wanted = {(each.seq, sink) for each in meant for sink in each.replayed(selection)}
            assert await opened(bench, selection) == wanted, selection
            assert bench.statuses() == before


async def pages(bench: Bench, selection: Selection) -> list[int]:
    """List all pages."""
    seen: list[int] = []
    while True:
        found = await bench.store.events.page(selection, ROUTES, limit=PAGE)
        seen += [each.seq for each in found]
        if len(found) < PAGE:
            return seen
        selection = replace(selection, before=seen[-1])


async def searched(bench: Bench, selection: Selection) -> list[int]:
    """Search page by page, each for no longer than its first step."""
    seen: list[int] = []
    while True:
        found = await bench.store.search.find(selection, ROUTES, limit=PAGE, budget_s=0)
        seen += [each.seq for each in found.events]
        if found.next is None:
            return seen
        selection = replace(selection, before=found.next)


async def compare_dead_letters(bench: Bench, selection: Selection, meant: list[Stored]) -> None:
    if selection.outcome not in (None, "dead"):
        return
    selection = replace(selection, outcome="dead")
    wanted = [
        (each.seq, sink, each.reason[sink])
        for each in meant
        for sink in sorted(each.fitting(selection))
    ]
    counted = await bench.store.dead_letters.reasons(selection)
    assert {(each.sink, each.reason): each.count for each in counted} == Counter(
        (sink, reason) for _, sink, reason in wanted
    )
    seen: list[tuple[int, str, str | None]] = []
    while found := await bench.store.dead_letters.newest(selection, limit=PAGE):
        seen += [(each.seq, each.sink, each.reason) for each in found]
        selection = replace(selection, before=seen[-1][0])
    assert seen == wanted


async def opened(bench: Bench, selection: Selection) -> set[tuple[int, str]]:
    """Start and cancel a replay; return the deliveries that it opened, as it forecast."""
    forecast = await bench.replayer.count(selection)
    begun = await bench.replayer.begin(selection)
    if begun is None:
        assert not forecast.deliveries
        return set()
    now = await bench.until_still(begun)
    records = await bench.store.events.page(Selection(), ROUTES, limit=EVENTS)
    found = {
        (each.seq, one.sink)
        for each in records
        for one in each.deliveries
        if one.replay == begun.id and one.status == "pending"
    }
    assert len(found) == forecast.deliveries.total() == begun.total == now.opened
    ended = await bench.replayer.cancel(begun.id)
    assert ended is not None
    assert ended.opened == 0
    return found
