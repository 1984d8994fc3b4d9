"""Searches that end in time: they find what a list does, step by step."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import orjson
import pytest
from msgspec import structs
from msgspec.structs import replace

from relay.core.config_values import Duration
from relay.core.delivery import Result
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED, Event
from relay.core.routing import Route
from relay.store import Store, search
from relay.store.postgres import search as postgres_search
from relay.store.replays import Mark, PlannedDelivery
from relay.store.selection import Conditions, Selection
from relay.store.sql import ALL, Condition, Sql, all_of
from relay.store.sqlite import search as sqlite_search
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, lease, settlement, unreadable
from tests.store.erasing import erase
from tests.store.places import Place, SqlitePlace

ADA, BOB = "ada@example.com", "bob@example.com"
ROUTES = [Route("sales"), Route("crm")]
HOUR_MS = 3_600_000
STEP = 4


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "STEP_ROWS", STEP)
    monkeypatch.setattr(search, "GROWTH", 1)
    monkeypatch.setattr(search, "OVERRUN_S", 10)


@pytest.fixture
async def store(place: Place, clock: ManualClock) -> AsyncIterator[Store]:
    async with place.open(clock, payload_retention=Duration.parse("1d")) as opened:
        yield opened


def event(
    event_id: str,
    data: dict[str, Any] | None = None,
    *,
    kind: str = LEAD_CAPTURED,
    source: str = "main",
    at_ms: int = NOW_MS,
) -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": data or {}})
    return Event(
        source=source, id=event_id, kind=kind, created_at=None, received_ms=at_ms, body=body
    )


async def settle(store: Store, result: Result, *, sink: str = "sales") -> None:
    for delivery in (await lease(store, sink, now_ms=NOW_MS + 9 * HOUR_MS)).deliveries:
        await store.settle(settlement(delivery, result, reason=result))


async def pages(store: Store, selection: Selection, *, limit: int = 3) -> list[list[str]]:
    """Search without any time, page by page."""
    seen = []
    while True:
        found = await store.search.find(selection, ROUTES, limit=limit, budget_s=0)
        seen.append([each.id for each in found.events])
        if found.next is None:
            return seen
        selection = replace(selection, before=found.next)


async def found(store: Store, selection: Selection) -> list[str]:
    """Search in every way, with one result."""
    page = await store.search.find(selection, ROUTES, limit=100, budget_s=9)
    ids = [each.id for each in page.events]
    assert (page.next, page.looked_to_ms) == (None, None)
    assert [each for ids in await pages(store, selection) for each in ids] == ids
    listed = await store.events.page(selection, ROUTES, limit=100)
    assert listed == page.events
    count = await store.search.count(selection, ROUTES, budget_s=9)
    assert (count.events, count.complete, count.looked_to_ms) == (len(ids), True, None)
    return ids


async def fill(store: Store, count: int = 30) -> list[str]:
    """Accept events a second apart; return their ids, newest first."""
    for number in range(count):
        await accept(store, event(f"e{number}", at_ms=NOW_MS + number * 1000))
    return [f"e{number}" for number in reversed(range(count))]


async def counted(store: Store) -> None:
    while await store.audience.fill():
        pass


async def test_a_search_without_time_looks_at_one_step_and_repeating_it_finds_all_once(
    store: Store,
) -> None:
    ids = await fill(store)
    assert await pages(store, Selection()) == [ids[n : n + 3] for n in range(0, 30, 3)]
    none = Selection(words="nowhere")
    first = await store.search.find(none, ROUTES, limit=3, budget_s=0)
    assert (first.events, first.next) == ([], 27)
    assert first.looked_to_ms == NOW_MS + 26_000
    assert await pages(store, none) == [[]] * 8
    count = await store.search.count(Selection(kind="lead.*"), ROUTES, budget_s=0)
    assert (count.events, count.complete, count.looked_to_ms) == (STEP, False, NOW_MS + 26_000)


async def test_a_search_ends_with_the_step_in_which_its_time_runs_out(place: Place) -> None:
    clock = TickingClock()
    async with place.open(clock) as store:
        await fill(store)
        clock.step_s = 0.1
        none = await store.search.find(Selection(words="nowhere"), ROUTES, limit=3, budget_s=0.55)
        assert none.next is not None
        assert 1 < none.next < 27
        clock.step_s = 0


async def test_a_step_that_takes_too_long_is_interrupted_and_done_in_smaller_ones(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await fill(store, 6)
    monkeypatch.setattr(search, "STEP_ROWS", 64)
    monkeypatch.setattr(search, "OVERRUN_S", 0.02)
    slow = Condition(engine_of(place).slow, {})
    fits = Conditions.fits
    steps = list[int]()

    def slower(*arguments: Any, **more: Any) -> Condition:
        """Take long if more than one event is looked at."""
        values = arguments[-1].values
        steps.append(values["stop"] - values["start"])
        return all_of(slow if steps[-1] > 1 else ALL, fits(*arguments, **more))

    monkeypatch.setattr(Conditions, "fits", slower)
    first = await store.search.find(Selection(kind="lead.*"), ROUTES, limit=3, budget_s=0)
    assert ([each.id for each in first.events], first.next) == (ids[:1], 6)
    assert steps == [6, 6, 1]
    count = await store.search.count(Selection(kind="lead.*"), ROUTES, budget_s=0)
    assert (count.events, count.complete) == (1, False)


async def test_a_count_of_everything_ends_in_time_too(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 6)
    monkeypatch.setattr(search, "OVERRUN_S", 0.02)
    engine = engine_of(place)
    monkeypatch.setattr(engine.search, "_ALL", Sql(f"SELECT 6 WHERE {engine.slow}"))
    count = await store.search.count(Selection(), ROUTES, budget_s=0)
    assert (count.events, count.complete, count.looked_to_ms) == (STEP, False, NOW_MS + 2000)


class Engine(NamedTuple):
    """The searches of an engine, and a condition that takes it long."""

    search: Any
    slow: str


def engine_of(place: Place) -> Engine:
    name = "sqlite" if isinstance(place, SqlitePlace) else "postgres"
    return Engine(
        search=import_module(f"relay.store.{name}.search"),
        slow=SLOW[name],
    )


SLOW = {
    "sqlite": """(
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000)
        SELECT count(*) > 0 FROM n
    )""",
    "postgres": "(SELECT pg_sleep(60) IS NOT NULL)",
}


@dataclass
class TickingClock(ManualClock):
    """Each look at it takes time."""

    step_s: float = 0
    now_s: float = 0

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s


async def test_an_empty_store_has_nothing_to_look_at(store: Store) -> None:
    for selection in (Selection(), Selection(kind="lead.*"), Selection(since_ms=1, sink="crm")):
        assert await found(store, selection) == []


async def test_the_last_page_has_no_next(store: Store) -> None:
    ids = await fill(store, 4)
    page = await store.search.find(Selection(), ROUTES, limit=4, budget_s=9)
    assert ([each.id for each in page.events], page.next) == (ids, None)
    page = await store.search.find(Selection(), ROUTES, limit=3, budget_s=9)
    assert ([each.id for each in page.events], page.next) == (ids[:3], 2)


async def test_events_that_arrive_meanwhile_are_on_no_later_page(store: Store) -> None:
    ids = await fill(store, 6)
    first = await store.search.find(Selection(), ROUTES, limit=3, budget_s=0)
    await accept(store, event("new"))
    rest = await pages(store, Selection(before=first.next))
    assert [each.id for each in first.events] + rest[0] == ids


@pytest.mark.parametrize(
    "selection",
    [
        Selection(outcome="dead"),
        Selection(outcome="dead", sink="crm"),
        Selection(reason="dea"),
        Selection(id="e1"),
        Selection(id="e1", source="main"),
        Selection(kind="video.ready"),
    ],
)
async def test_one_event_among_many_is_found_in_the_first_step(
    store: Store, selection: Selection
) -> None:
    await accept(store, event("e0"))
    await accept(store, event("e1", kind="video.ready"), verdicts=[OTHER])
    await settle(store, "dead", sink="crm")
    # The kind was last received so long before that the clock cannot have been the reason.
    for number in range(2, 30):
        await accept(store, event(f"e{number}", at_ms=NOW_MS + 2 * HOUR_MS))
    await settle(store, "delivered")
    assert await pages(store, selection) == [["e1"]]
    assert await found(store, selection) == ["e1"]


async def test_pending_deliveries_are_found_in_the_first_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store)
    await settle(store, "delivered")
    assert await pages(store, Selection(outcome="pending")) == [[]]
    await accept(store, event("new"), verdicts=[OTHER])
    until = await store.events.newest()
    begun = await store.replays.begin(Selection(), total=2, until=until, now_ms=NOW_MS)
    again = [PlannedDelivery(seq, "sales") for seq in (2, 5)]
    await store.replays.open(begun, again, cursor=5, now_ms=NOW_MS)
    for sink, ids in ((None, ["new", "e4", "e1"]), ("sales", ["e4", "e1"]), ("crm", ["new"])):
        selection = Selection(outcome="pending", sink=sink)
        assert await pages(store, selection) == [ids]
        assert await found(store, selection) == ids
    replayed = sqlite_search._REPLAYED.replace("10000", "0")
    monkeypatch.setattr(sqlite_search, "_REPLAYED", replayed)
    monkeypatch.setattr(postgres_search, "PENDING_MAX", 0)
    assert await found(store, Selection(outcome="pending")) == ["new", "e4", "e1"]


async def test_an_hour_is_found_in_the_first_step(store: Store) -> None:
    for number in range(40):
        await accept(store, event(f"e{number}", at_ms=NOW_MS + number * HOUR_MS))
    selection = Selection(since_ms=NOW_MS + 9 * HOUR_MS, until_ms=NOW_MS + 10 * HOUR_MS)
    assert await pages(store, selection) == [["e9"]]
    assert await found(store, replace(selection, source="main")) == ["e9"]
    assert await found(store, Selection(until_ms=NOW_MS)) == []
    assert await found(store, Selection(since_ms=NOW_MS + 40 * HOUR_MS)) == []
    assert await found(store, Selection(since_ms=(1 << 53) - 1, until_ms=0)) == []


async def test_a_clock_that_was_set_back_hides_no_event(store: Store) -> None:
    minute_ms = 60_000
    # Eight minutes ahead from 20 to 30, with nobody to notice.
    for number in range(60):
        ahead = 8 if 20 <= number < 30 else 0
        await accept(store, event(f"e{number}", at_ms=NOW_MS + (number + ahead) * minute_ms))
    for start in range(0, 60, 7):
        span = Selection(
            since_ms=NOW_MS + start * minute_ms, until_ms=NOW_MS + (start + 5) * minute_ms
        )
        assert await found(store, span) == [
            f"e{number}"
            for number in reversed(range(60))
            if start <= number + (8 if 20 <= number < 30 else 0) < start + 5
        ]
    assert 8 * minute_ms < search.MARGIN_MS


async def test_a_gap_in_the_numbers_ends_no_search(store: Store, place: Place) -> None:
    ids = await fill(store, 40)
    place.rows("DELETE FROM relay.deliveries WHERE event BETWEEN 10 AND 30")
    place.rows("DELETE FROM relay.events WHERE seq BETWEEN 10 AND 30")
    left = ids[:10] + ids[-9:]
    assert await found(store, Selection()) == left
    assert await found(store, Selection(words="e")) == left
    assert await found(store, Selection(since_ms=NOW_MS + 20_000)) == ids[:10]


async def test_searches_at_once_take_turns(store: Store) -> None:
    ids = await fill(store)
    order: list[str] = []

    async def search_for(name: str, selection: Selection) -> None:
        page = await store.search.find(selection, ROUTES, limit=2, budget_s=9)
        order.append(name)
        assert [each.id for each in page.events] == (ids[:2] if name == "quick" else [])

    slow = search_for("slow", Selection(words="nowhere"))
    await asyncio.gather(slow, search_for("quick", Selection()))
    assert order == ["quick", "slow"]


class TestPeople:
    """Filters by a person, named by the store's digest."""

    async def test_every_spelling_of_an_address_is_one_person(self, store: Store) -> None:
        person = store.audience.person
        assert person(ADA) == person(" ADA@Example.COM ") != person(BOB)
        assert person("zo\u00eb@example.com") == person("ZOE\u0308@example.com")
        assert len(person(ADA)) == 16
        assert ADA.encode().hex()[:16] != person(ADA)

    async def test_events_are_found_before_and_after_the_audience_has_counted_them(
        self, store: Store
    ) -> None:
        viewer = {"viewer": {"email": "ADA@example.com"}, "milestone": "50%"}
        await accept(store, event("lead", {"email": ADA}))
        await accept(store, event("bobs", {"email": BOB}))
        await accept(store, event("view", viewer, kind=VIDEO_WATCHED), event("none"))
        ada = Selection(person=store.audience.person(ADA))
        assert await found(store, ada) == ["view", "lead"]
        await counted(store)
        assert await found(store, ada) == ["view", "lead"]
        await accept(store, event("late", {"email": ADA}))
        assert await found(store, ada) == ["late", "view", "lead"]
        assert await found(store, replace(ada, kind="video.*")) == ["view"]
        assert await found(store, replace(ada, sink="crm")) == []

    async def test_a_person_and_an_id_are_both_required(self, store: Store) -> None:
        await accept(store, event("ada", {"email": ADA}), event("bob", {"email": BOB}))
        ada = Selection(person=store.audience.person(ADA))
        for _ in range(2):
            assert await found(store, replace(ada, id="ada")) == ["ada"]
            assert await found(store, replace(ada, id="bob")) == []
            await counted(store)

    async def test_events_of_a_person_are_found_after_their_bodies_have_expired(
        self, store: Store
    ) -> None:
        await accept(store, event("lead", {"email": ADA}))
        await settle(store, "delivered")
        while await store.expire(now_ms=NOW_MS + 48 * HOUR_MS):
            pass
        ada = Selection(person=store.audience.person(ADA))
        assert await found(store, ada) == ["lead"]
        assert await found(store, Selection(email=ADA)) == []

    @pytest.mark.parametrize("is_counted", [True, False])
    async def test_an_erased_person_has_no_events(self, store: Store, is_counted: bool) -> None:
        await accept(store, event("ada", {"email": ADA}), event("bob", {"email": BOB}))
        if is_counted:
            await counted(store)
        await erase(store, ADA, now_ms=NOW_MS)
        assert await found(store, Selection(person=store.audience.person(ADA))) == []
        assert await found(store, Selection(person=store.audience.person(BOB))) == ["bob"]

    @pytest.mark.parametrize(
        "text", ["", "x", "f" * 16, "0" * 15, "0" * 17, "+" + "0" * 15, "0_" * 8, "\0" * 16, ADA]
    )
    async def test_text_without_an_address_names_nobody(self, store: Store, text: str) -> None:
        await accept(store, event("lead", {"email": ADA}), event("none"))
        assert await found(store, Selection(person=text)) == []
        await counted(store)
        assert await found(store, Selection(person=text)) == []

    async def test_dead_letters_and_replays_are_selected_by_person(self, store: Store) -> None:
        await accept(store, event("ada", {"email": ADA}), event("bob", {"email": BOB}))
        await settle(store, "dead")
        ada = Selection(person=store.audience.person(ADA))
        await counted(store)
        until = await store.events.newest()
        chosen = await store.replays.choose(ada, ROUTES, after=0, until=until, limit=9)
        assert [each.event.id for each in chosen] == ["ada"]
        begun = await store.replays.begin(ada, total=1, until=until, now_ms=NOW_MS)
        assert begun.selection == ada
        assert [each.count for each in await store.dead_letters.reasons(ada)] == [1]
        assert await store.dead_letters.discard(ada, now_ms=NOW_MS) == 1
        (left,) = await store.dead_letters.newest(Selection(), limit=9)
        assert left.id == "bob"

    async def test_a_body_that_is_not_an_object_has_no_person(self, store: Store) -> None:
        odd = (b"[]", b"7", b"{", b"\xff\xfe", b'{"data":{"viewer":[]}}', b"[" * 5000)
        bodies = [structs.replace(event(f"e{n}"), body=each) for n, each in enumerate(odd)]
        await accept(store, *bodies, event("ada", {"email": ADA}))
        assert await found(store, Selection(person=store.audience.person(ADA))) == ["ada"]
        assert await found(store, Selection(words=ADA)) == ["ada"]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("Lovelace", ["name"]),
        ("LOVELACE ada", ["name"]),
        ("lovelace babbage", []),
        ("  lovelace\t\n ada ", ["name"]),
        ("e ada ada ada", ["name"]),
        ("Zo\u00eb", ["escaped", "raw"]),
        ("zO\u00cb", []),
        ("\U0001f600", ["escaped", "raw"]),
        ('say"hi"', ["quoted"]),
        ("back\\slash", ["quoted"]),
        ("100%", ["signs"]),
        ("a_b", ["signs"]),
        ("[a-z]*", ["signs"]),
        ("%", ["signs"]),
        ("_%", []),
        ("*", ["signs"]),
        ("?", []),
        ("' OR 1 --", []),
        ("nul\0byte", ["nul"]),
        ("\0", ["nul"]),
        ("\ud800", ["surrogate"]),
        ("\udfff", []),
        ("", []),
        (" \t\n\u2003", []),
        ("x" * 320, ["long"]),
        ("~ " * 160, ["signs"]),
    ],
)
async def test_words_are_text_of_the_body_whatever_their_characters(
    store: Store, words: str, ids: Sequence[str]
) -> None:
    bodies = {
        "name": b'{"name":"Ada Lovelace"}',
        "raw": '{"name":"Zo\u00eb \U0001f600"}'.encode(),
        "escaped": rb'{"name":"Zo\u00EB \uD83D\uDE00"}',
        "quoted": rb'{"name":"say\"hi\" back\\slash"}',
        "signs": b'{"~":"100% a_b [a-z]*"}',
        "nul": rb'{"name":"nul\u0000byte"}',
        "surrogate": rb'{"name":"\ud800"}',
        "long": b'{"name":"%s"}' % (b"x" * 320),
    }
    await store.keep(unreadable(b"\xff\xfe Lovelace % \0"), lambda _: None)
    for event_id, body in bodies.items():
        await accept(store, structs.replace(event(event_id), body=body))
    assert await found(store, Selection(words=words)) == list(ids)


async def test_words_of_a_replay_are_stored_with_it(store: Store) -> None:
    await accept(store, event("a", {"name": "Ada"}))
    words = Selection(words="ADA name")
    begun = await store.replays.begin(words, total=1, until=Mark(1, 0), now_ms=NOW_MS)
    again = await store.replays.one(begun.id)
    assert again is not None
    assert again.selection == words


async def test_a_replay_of_an_older_relay_is_still_read(store: Store, place: Place) -> None:
    until = Mark(0, 0)
    begun = await store.replays.begin(Selection(), total=1, until=until, now_ms=NOW_MS)
    place.rows("""UPDATE relay.replays SET selection = '{"kind":"lead.*","email":null}'""")
    again = await store.replays.one(begun.id)
    assert again is not None
    assert again.selection == Selection(kind="lead.*")


async def test_a_missed_event_is_found_by_the_routes(store: Store) -> None:
    ids = await fill(store, 9)
    await accept(store, event("both"), verdicts=[TAKES, OTHER])
    assert await found(store, Selection(outcome="missed", sink="crm")) == ids
    assert await found(store, Selection(outcome="missed", sink="sales")) == []
