"""Personal data is erased and exported, and only that of the person."""

import asyncio
import hashlib
from functools import partial
from itertools import chain, count, cycle
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from relay.core.authentication import UnverifiedRequest
from relay.core.delivery import Delivery, Result
from relay.core.errors import StoreUnavailable
from relay.core.event import Event, Unreadable
from relay.store import Store, erasures, personal_data_export, stepwise_erasure
from relay.store.erasures import Erasure, UnderWay
from relay.store.personal_data_export import Records
from relay.store.personal_data_removal import Traces
from relay.store.replays import Mark, PlannedDelivery
from relay.store.selection import Selection
from relay.store.unreadable import UnreadableSelection
from tests.conftest import NOW_MS, ManualClock
from tests.store import erasing
from tests.store.conformance import OTHER, TAKES, accept, lease, settlement
from tests.store.places import Place

ANN = "ann.lee@example.com"
WRITTEN = (ANN, "Ann.Lee@Example.COM", "ANN.LEE@EXAMPLE.COM")


def event(event_id: str, email: str = ANN, *, kind: str = "lead.captured") -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": {"email": email, "name": "N. N."}})
    return Event(
        source="main",
        id=event_id,
        kind=kind,
        created_at="2026-03-02T09:30:00Z",
        received_ms=NOW_MS,
        body=body,
        headers=b"host: relay\r\n",
    )


def odd(body: bytes) -> Unreadable:
    return Unreadable(source="main", received_ms=NOW_MS, body=body, headers=b"", reason="odd")


async def settle(
    store: Store,
    *deliveries: Delivery,
    result: Result = "delivered",
    answer: str = "thanks",
    at_ms: int = NOW_MS,
) -> None:
    for each in deliveries:
        made = settlement(each, result, at_ms=at_ms)
        await store.settle(replace(made, attempt=replace(made.attempt, answer=answer)))


async def leased(store: Store, sink: str = "sales") -> tuple[Delivery, ...]:
    return (await lease(store, sink)).deliveries


async def erase(store: Store, email: str = ANN) -> Erasure:
    return await erasing.erase(store, email, now_ms=NOW_MS + 10)


def all_of(record: Records) -> list[str]:
    return [each.event.id for each in record.events]


async def test_a_persons_events_lose_their_bodies_and_keep_their_ids(
    store: Store, place: Place
) -> None:
    await accept(store, event("a"), event("b", WRITTEN[2]), event("c", "bob@example.com"))
    erased = await erase(store)
    assert erased.events == 2
    rows = place.rows(
        "SELECT id, body IS NULL, headers IS NULL, created_at FROM relay.events ORDER BY seq"
    )
    assert rows == [
        ("a", 1, 1, None),
        ("b", 1, 1, None),
        ("c", 0, 0, "2026-03-02T09:30:00Z"),
    ]


async def test_a_late_retry_is_a_duplicate_and_restores_no_data(store: Store, place: Place) -> None:
    await accept(store, event("a"))
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    await erase(store)
    assert await accept(store, event("a")) == ["duplicate"]
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    assert (await store.personal_data.count(ANN)).events == 0
    assert place.rows("SELECT body FROM relay.events UNION SELECT body FROM relay.unreadable") == [
        (None,)
    ]
    assert await leased(store) == ()


async def test_pending_and_dead_deliveries_are_discarded(store: Store, place: Place) -> None:
    await accept(store, event("dead"))
    await settle(store, *await leased(store), result="dead")
    await accept(store, event("new"), event("bobs", "bob@example.com"))
    erased = await erase(store)
    assert (erased.pending, erased.dead, erased.under_way) == (1, 1, [])
    rows = place.rows(
        "SELECT event, status, reason, settled_at FROM relay.deliveries ORDER BY event"
    )
    assert rows[:2] == [
        (1, "discarded", "erased", NOW_MS + 10),
        (2, "discarded", "erased", NOW_MS + 10),
    ]
    assert place.rows("SELECT answer FROM relay.attempts") == [("",)]
    assert [each.event.id for each in await leased(store)] == ["bobs"]
    backlog = (await store.backlogs())["sales"]
    assert (backlog.pending, backlog.dead) == (1, 0)


async def test_a_delivery_in_flight_is_reported_and_leaves_no_answer(
    store: Store, place: Place
) -> None:
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    on_its_way = await leased(store)
    erased = await erase(store)
    assert [(each.sink, each.source, each.id) for each in erased.under_way] == [
        ("sales", "main", "a")
    ]
    await settle(store, *on_its_way, answer=f"hello {ANN}")
    assert place.rows("SELECT result, answer FROM relay.attempts") == [("delivered", "")]
    assert set(place.rows("SELECT status FROM relay.deliveries")) == {("discarded",)}
    assert (await store.backlogs())["sales"].pending == 0


async def test_an_erasure_lists_the_sinks_that_got_data(store: Store) -> None:
    await accept(store, event("a"), event("b"), verdicts=[TAKES, OTHER])
    await accept(store, event("w", kind="video.watched"), verdicts=[TAKES])
    await settle(store, *await leased(store), at_ms=NOW_MS + 7)
    first, _ = await leased(store, "crm")
    await settle(store, first, result="retry", at_ms=NOW_MS + 1)
    erased = await erase(store)
    assert [(each.sink, each.kind, each.count, each.last_ms) for each in erased.told] == [
        ("sales", "lead.captured", 2, NOW_MS + 12),
        ("sales", "video.watched", 1, NOW_MS + 12),
    ]
    assert [(each.sink, each.kind, each.count, each.last_ms) for each in erased.unconfirmed] == [
        ("crm", "lead.captured", 1, NOW_MS + 6)
    ]


async def test_answers_about_the_person_are_erased_from_other_events(
    store: Store,
    place: Place,
) -> None:
    await accept(store, event("bobs", "bob@example.com"))
    await settle(store, *await leased(store), answer=f'{{"owner":"{WRITTEN[1]}"}}')
    erased = await erase(store)
    assert (erased.events, erased.excerpts) == (0, 1)
    assert place.rows("SELECT answer, result FROM relay.attempts") == [("", "delivered")]
    assert place.rows("SELECT count(body) FROM relay.events") == [(1,)]


@pytest.mark.parametrize(
    "selection", [Selection(email=WRITTEN[1]), Selection(words=f"Tour {WRITTEN[2]}")]
)
async def test_erasing_a_selection_by_address_does_not_select_everything(
    store: Store, selection: Selection
) -> None:
    await accept(store, event("bobs", "bob@example.com"))
    until = await store.events.newest()
    begun = await store.replays.begin(selection, total=1, until=until, now_ms=NOW_MS)
    assert (await erase(store)).searches == 1
    replay = await store.replays.one(begun.id)
    assert replay is not None
    assert (replay.state, replay.selection) == ("cancelled", Selection(email="(erased)"))
    assert (
        await store.replays.choose(replay.selection, (), after=0, until=Mark(9, 9), limit=9) == []
    )


async def test_an_erased_event_cannot_be_replayed_even_if_selected_before(
    store: Store,
) -> None:
    await accept(store, event("a"))
    await settle(store, *await leased(store))
    until = await store.events.newest()
    begun = await store.replays.begin(Selection(), total=1, until=until, now_ms=NOW_MS)
    (chosen,) = await store.replays.choose(Selection(), (), after=0, until=until, limit=9)
    await erase(store)
    opened = await store.replays.open(
        begun, [PlannedDelivery(chosen.seq, "sales")], cursor=1, now_ms=NOW_MS
    )
    assert (opened.opened, opened.cursor) == (0, 1)
    assert await leased(store) == ()
    assert await store.replays.choose(Selection(), (), after=0, until=until, limit=9) == []


async def test_a_dry_run_counts_the_same_and_changes_nothing(store: Store, place: Place) -> None:
    await accept(store, event("a"), event("b"))
    await settle(store, (await leased(store))[0], result="dead")
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    before = (
        place.rows("SELECT * FROM relay.events ORDER BY seq"),
        place.rows("SELECT * FROM relay.deliveries ORDER BY event, sink"),
    )
    counted = await store.personal_data.count(WRITTEN[2])
    assert before == (
        place.rows("SELECT * FROM relay.events ORDER BY seq"),
        place.rows("SELECT * FROM relay.deliveries ORDER BY event, sink"),
    )
    assert place.rows("SELECT count(*) FROM relay.erasures") == [(0,)]
    assert replace(await erase(store), wiped=False, remains="") == counted
    assert (counted.events, counted.dead, counted.pending, counted.unreadable) == (2, 1, 1, 1)


async def test_an_erasure_is_recorded_without_the_address(place: Place, clock: ManualClock) -> None:
    async with place.open(clock) as store:
        await accept(store, event("a"))
        erased = await erase(store)
        await erase(store, WRITTEN[2])
        await erase(store, "bob@example.com")
    async with place.open(clock) as store:
        third, second, first = await store.personal_data.erasures(limit=9)
        assert first.erasure == erased
        assert (first.begun_ms, first.ended_ms) == (NOW_MS + 10, NOW_MS + 10)
        assert first.person == second.person != third.person
        assert hashlib.sha256(ANN.encode()).hexdigest() != first.person
        assert [each.id for each in await store.personal_data.erasures(limit=1)] == [third.id]
        of_ann = await store.personal_data.erasures(limit=9, email=WRITTEN[1])
        assert [each.id for each in of_ann] == [second.id, first.id]
    stored = place.rows("SELECT person, report FROM relay.erasures")
    assert [ANN in f"{bytes(person)!r} {report}".lower() for person, report in stored] == [
        False
    ] * 3


async def test_an_order_removes_nothing_and_is_carried_out_after_a_restart(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_erasure, "SCAN_ROWS", 4)
    monkeypatch.setattr(stepwise_erasure, "STEP_ROWS", 2)
    async with place.open(clock) as store:
        await accept(store, *(event(f"a{number}") for number in range(20)))
        await settle(store, *(await leased(store))[:3])
        await store.audience.count()
        number = await store.personal_data.order(ANN, now_ms=NOW_MS + 10)
        assert await store.personal_data.order(WRITTEN[2], now_ms=NOW_MS + 20) == number
        assert (await store.personal_data.count(ANN)).events == 20
        shares, removed = list[float](), list[int]()
        for steps in (2, 2, 3):
            goes_on = partial(next, chain([True] * steps, cycle([False])))
            await store.personal_data.advance(goes_on=goes_on)
            record = await store.personal_data.erasure(number)
            assert record is not None
            assert record.erasure is not None
            assert (record.ended_ms, ANN in str(record)) == (None, False)
            shares.append(record.share or 0)
            removed.append(record.erasure.events)
        assert 0 < removed[0] < 20
        assert (removed, shares) == (sorted(removed), sorted(shares))
    async with place.open(clock) as store:
        assert await store.personal_data.advance()
        assert not await store.personal_data.advance()
        record = await store.personal_data.erasure(number)
        assert record is not None
        assert record.erasure is not None
        erasure = record.erasure
        assert (erasure.events, erasure.views, erasure.pending) == (20, 20, 17)
        assert [(each.sink, each.count) for each in erasure.told] == [("sales", 3)]
        assert (await store.personal_data.count(ANN)).events == 0
        (again,) = await store.personal_data.erasures(limit=9)
        assert again == record
    assert ANN not in str(place.rows("SELECT report FROM relay.erasures"))


async def test_an_erasure_ends_while_more_events_of_the_person_arrive(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_erasure, "SCAN_ROWS", 2)
    await accept(store, *(event(f"a{number}") for number in range(10)))
    search = store.personal_data._search
    find, later = search.find, count()

    async def find_while_one_arrives(*arguments: Any, **more: Any) -> Any:
        await accept(store, event(f"later {next(later)}"), event(f"later {next(later)}"))
        return await find(*arguments, **more)

    monkeypatch.setattr(search, "find", find_while_one_arrives)
    async with asyncio.timeout(30):
        erased = await erase(store)
    assert erased.events >= 10
    monkeypatch.undo()
    assert (await store.personal_data.count(ANN)).events > 0


@pytest.mark.parametrize("steps_before", range(4))
async def test_a_request_that_becomes_an_event_during_an_erasure_is_erased(
    store: Store, steps_before: int
) -> None:
    await accept(store, event("known"))
    mended = event("mended")
    await store.keep(odd(mended.body), lambda _: None)
    until_ms = NOW_MS + 1000
    await store.quarantine.begin("main", now_ms=NOW_MS, until_ms=until_ms, expires_ms=until_ms)
    kept = UnverifiedRequest("main", NOW_MS, b"", b"", event("signed").body)
    await store.quarantine.keep(kept)
    await store.personal_data.order(ANN, now_ms=NOW_MS + 10)
    goes_on = partial(next, chain([True] * steps_before, cycle([False])))
    await store.personal_data.advance(goes_on=goes_on)
    for waiting in await store.quarantine.waiting("main", after=0, limit=9):
        await accept(store, event("signed"))
        await store.quarantine.release("main", [waiting.number], duplicates=0)
    for content in await store.unreadable.contents(UnreadableSelection(), after=0, limit=9):
        if content.body is not None:
            await accept(store, mended)
            await store.unreadable.discard([content.request])
    await store.personal_data.advance()
    left = await store.personal_data.count(ANN)
    assert (left.events, left.unreadable, left.quarantine) == (0, 0, 0)


@pytest.mark.parametrize("place_number", [0, 1, 2, 12])
async def test_an_erasure_that_stopped_among_other_places_begins_anew(
    store: Store, place_number: int
) -> None:
    """An update may have changed the places, or their order."""
    await accept(store, event("known"), event(f"lead/{ANN}"))
    await store.keep(odd(event("odd").body), lambda _: None)
    until_ms = NOW_MS + 1000
    await store.quarantine.begin("main", now_ms=NOW_MS, until_ms=until_ms, expires_ms=until_ms)
    await store.quarantine.keep(UnverifiedRequest("main", NOW_MS, b"", b"", event("signed").body))
    order = erasures.Order(ANN, place=place_number, start=1 << 40)
    so_far = replace(Traces().erasure((), wiped=False, remains=""), kept_ids=1)
    report = erasures.unfinished(so_far, order)
    number = await store.personal_data._erasures.begin(b"person", report, now_ms=NOW_MS)
    assert await store.personal_data.advance()
    left = await store.personal_data.count(ANN)
    assert (left.events, left.unreadable, left.quarantine) == (0, 0, 0)
    record = await store.personal_data.erasure(number)
    assert record is not None
    assert record.erasure is not None
    assert (record.erasure.events, record.erasure.kept_ids) == (2, 1)


async def test_an_erasure_that_failed_goes_on_where_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_erasure, "SCAN_ROWS", 4)
    monkeypatch.setattr(stepwise_erasure, "STEP_ROWS", 2)
    await accept(store, *(event(f"a{number}") for number in range(20)))
    on_its_way = (await leased(store))[:2]
    search = store.personal_data._search
    find, calls = search.find, count(1)

    async def find_now_and_then(*arguments: Any, **more: Any) -> Any:
        if next(calls) % 3 == 0:
            raise StoreUnavailable("the database has not answered for 15 s")
        return await find(*arguments, **more)

    monkeypatch.setattr(search, "find", find_now_and_then)
    number = await store.personal_data.order(ANN, now_ms=NOW_MS)
    failures = 0
    while True:
        try:
            if not await store.personal_data.advance():
                break
        except StoreUnavailable:
            failures += 1
    record = await store.personal_data.erasure(number)
    assert record is not None
    assert record.erasure is not None
    assert failures > 3
    assert (record.erasure.events, record.erasure.pending) == (20, 20)
    assert {each.id for each in on_its_way_of(record.erasure)} >= {
        each.event.id for each in on_its_way
    }


async def test_no_row_is_left_after_a_restart_in_whatever_order_rows_are_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_erasure, "STEP_ROWS", 2)
    await accept(store, *(event(f"a{number}") for number in range(6)))
    search, removal = store.personal_data._search, store.personal_data._removal
    candidates, remove, calls = search._candidates, removal.remove, count(1)

    def newest_first(*arguments: Any) -> Any:
        return reversed([*candidates(*arguments)])

    async def remove_unless_second(*arguments: Any, **more: Any) -> None:
        if next(calls) == 2:
            raise StoreUnavailable("the database has not answered for 15 s")
        await remove(*arguments, **more)

    monkeypatch.setattr(search, "_candidates", newest_first)
    monkeypatch.setattr(removal, "remove", remove_unless_second)
    number = await store.personal_data.order(ANN, now_ms=NOW_MS)
    with pytest.raises(StoreUnavailable):
        await store.personal_data.advance()
    # The next run knows only what is in the store, as after a restart.
    store.personal_data._run = None
    assert await store.personal_data.advance()
    record = await store.personal_data.erasure(number)
    assert record is not None
    assert record.erasure is not None
    assert record.erasure.events == 6
    assert (await store.personal_data.count(ANN)).events == 0


def on_its_way_of(erasure: Erasure) -> list[UnderWay]:
    return [each for each in erasure.under_way if each.sink == "sales"]


async def test_an_id_that_contains_the_address_is_reported(store: Store) -> None:
    await accept(store, event(f"lead/{ANN}"))
    assert (await erase(store)).kept_ids == 1
    assert (await erase(store)).events == 0


async def test_many_rows_are_found_in_small_steps(
    store: Store, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_erasure, "SCAN_ROWS", 10)
    monkeypatch.setattr(stepwise_erasure, "STEP_ROWS", 3)
    mine = [event(f"a{number}") for number in range(40)]
    others = [event(f"b{number}", f"x{ANN}") for number in range(40)]
    await accept(store, *(each for pair in zip(mine, others, strict=True) for each in pair))
    assert (await erase(store)).events == 40
    assert place.rows("SELECT count(body), min(id) FROM relay.events WHERE body IS NOT NULL") == [
        (40, "b0")
    ]


async def test_personal_data_is_exported_in_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(personal_data_export, "SCAN_ROWS", 2)
    monkeypatch.setattr(personal_data_export, "PART_STEPS", 2)
    await accept(store, *(event(f"a{number}") for number in range(6)))
    await accept(store, event("bobs", "bob@example.com"))
    await settle(store, *await leased(store), answer=f"I know {ANN}")
    await store.keep(odd(f"?{ANN}".encode()), lambda _: None)
    parts = [await store.personal_data.records(WRITTEN[1], after=None)]
    while parts[-1].next is not None:
        parts.append(await store.personal_data.records(WRITTEN[1], after=parts[-1].next))
    assert [each for part in parts for each in all_of(part)] == [f"a{n}" for n in range(6)]
    assert [each.body for part in parts for each in part.unreadable] == [f"?{ANN}".encode()]
    (mention,) = [each for part in parts for each in part.mentions]
    assert (mention.id, mention.attempt.answer) == ("bobs", f"I know {ANN}")
    assert len(parts) > 3
    first = parts[0].events[0]
    assert (first.body, len(first.attempts)) == (event("a0").body, 1)


@pytest.mark.parametrize("after", ["", "7.1", "1", "x.1", "0.-1", "0.1 "])
async def test_an_invalid_cursor_is_refused(store: Store, after: str) -> None:
    with pytest.raises(ValueError, match="after is invalid"):
        await store.personal_data.records(ANN, after=after)


async def test_events_are_acknowledged_during_an_erasure(store: Store) -> None:
    await accept(store, *(event(f"e{number}") for number in range(400)))
    erasing = asyncio.create_task(erase(store))
    waits: list[float] = []
    clock = asyncio.get_running_loop().time
    while not erasing.done():
        started = clock()
        await accept(store, event(f"n{len(waits)}", "bob@example.com"))
        waits.append(clock() - started)
    assert (await erasing).events == 400
    assert len(waits) > 5
    assert max(waits) < 0.25


async def test_an_erasure_covers_quarantined_requests(store: Store) -> None:
    for name in ("ada", "bob"):
        body = b'{"data":{"email":"%s@example.com"}}' % name.encode()
        await store.quarantine.keep(UnverifiedRequest("main", NOW_MS, b"", b"", body))
    (found,) = (await store.personal_data.records("Ada@example.com", after=None)).unreadable
    assert (found.source, found.received_ms) == ("main", NOW_MS)
    assert found.reason == "it fits no secret of the source so far"
    assert (await store.personal_data.count("ada@example.com")).quarantine == 1
    erased = await erase(store, "ada@example.com")
    assert (erased.quarantine, erased.unreadable) == (1, 0)
    (waiting,) = await store.quarantine.waiting("main", after=0, limit=9)
    assert b"bob" in waiting.request.body


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe " + WRITTEN[1].encode() + b" \x80",
        WRITTEN[1].encode("utf-16-le"),
        b'"' + "".join(f"\\u{ord(each):04x}" for each in WRITTEN[2]).encode() + b'"',
        b"email=ann.lee%40example.com&x=%FF",
    ],
)
async def test_an_address_is_found_in_any_encoding_and_beside_any_bytes(
    store: Store, place: Place, body: bytes
) -> None:
    await store.keep(odd(body), lambda _: None)
    for mine, others in ((b"n", b"m"), (b"N", b"M"), (b"004e", b"004d")):
        body = body.replace(mine, others)
    await store.keep(odd(body), lambda _: None)
    assert (await erase(store)).unreadable == 1
    assert place.rows("SELECT count(body) FROM relay.unreadable") == [(1,)]


async def test_an_erased_view_leaves_the_audience_and_its_day(store: Store, place: Place) -> None:
    await accept(store, event("a"), event("b", "bob@example.com"))
    while await store.audience.fill():
        pass
    assert place.rows("SELECT count(*) FROM relay.audience") == [(2,)]
    assert (await erase(store)).views == 1
    while await store.audience.fill():
        pass
    assert place.rows("SELECT count(*) FROM relay.audience") == [(1,)]
    assert (await erase(store)).views == 0


async def test_the_title_and_the_id_of_a_video_are_erased_if_they_contain_the_address(
    store: Store, place: Place
) -> None:
    place.rows(
        "INSERT INTO relay.videos (id, title) VALUES (%s, 'x'), ('v', %s), ('w', 'a tour')",
        f"{ANN}/1",
        f"For {ANN}",
    )
    assert (await erase(store)).videos == 2
    rows = place.rows("SELECT substr(id, 1, 7), title FROM relay.videos ORDER BY number")
    assert rows == [("erased-", "x"), ("v", None), ("w", "a tour")]


async def test_an_erasure_takes_the_names_out_of_a_report_that_has_the_person(
    store: Store,
) -> None:
    runs = store.reconstructions
    for person in (ANN, "bob@example.com"):
        run = await runs.begin("main", since_ms=1, until_ms=2, dry_run=False, now_ms=NOW_MS)
        named = [{"outcome": "unknown", "kind": "video.watched", "person": person, "title": "a\0b"}]
        report = {"unknown": {"older": 1}, "named": named}
        await runs.end(run, "done", report=report, place=None, now_ms=NOW_MS)
    assert (await erase(store)).reports == 1
    bob, ann = [await runs.run(each.id) for each in await runs.runs(before=None, limit=2)]
    assert ann is not None
    assert bob is not None
    assert ann.report == {"unknown": {"older": 1}}
    assert [fact.person for fact in bob.named] == ["bob@example.com"]
    assert [each.named for each in await runs.runs(before=None, limit=2)] == [(), ()]
    assert await store.absences.unreconciled("main") == []
