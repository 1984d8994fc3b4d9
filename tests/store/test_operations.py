"""Operators' queries and changes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from relay.core.delivery import Result, Status
from relay.core.event import Event
from relay.core.routing import Route
from relay.store import Store
from relay.store.dead_letters import Reason
from relay.store.replays import Mark, PlannedDelivery, Replay
from relay.store.selection import Selection
from relay.store.unreadable import UnreadableReason, UnreadableSelection
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import OTHER, TAKES, accept, lease, settlement, unreadable
from tests.store.places import Place


@pytest.fixture
async def store(
    place: Place, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    monkeypatch.setattr("relay.store.postgres.withdrawals.SWEEP_S", 0.01)
    async with place.open(clock) as opened:
        yield opened


ROUTES = [Route("sales"), Route("crm")]


def event(
    event_id: str,
    data: dict[str, Any] | None = None,
    *,
    kind: str = "lead.captured",
    source: str = "main",
    at_ms: int = NOW_MS,
) -> Event:
    body = orjson.dumps({"id": event_id, "event": kind, "data": data or {}})
    return Event(
        source=source,
        id=event_id,
        kind=kind,
        created_at=None,
        received_ms=at_ms,
        body=body,
        headers=b"host: relay\r\n",
    )


async def settle(
    store: Store, result: Result = "delivered", *, sink: str = "sales", reason: str = ""
) -> None:
    for delivery in (await lease(store, sink)).deliveries:
        await store.settle(settlement(delivery, result, reason=reason))


async def found(store: Store, selection: Selection) -> list[str]:
    records = await store.events.page(selection, ROUTES, limit=100)
    return [record.id for record in records]


async def statuses(store: Store) -> dict[tuple[str, str], str]:
    records = await store.events.page(Selection(), (), limit=100)
    return {(each.id, one.sink): one.status for each in records for one in each.deliveries}


async def replay(store: Store, selection: Selection, *ids: int, sink: str = "sales") -> Replay:
    until = await store.events.newest()
    begun = await store.replays.begin(selection, total=len(ids), until=until, now_ms=NOW_MS)
    wanted = [PlannedDelivery(seq, sink) for seq in ids]
    return await store.replays.open(begun, wanted, cursor=max(ids), now_ms=NOW_MS)


async def test_the_newest_events_come_first_with_their_deliveries(store: Store) -> None:
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    await accept(store, event("b"))
    newest, oldest = await store.events.page(Selection(), (), limit=10)
    assert (newest.id, oldest.id) == ("b", "a")
    assert [(each.sink, each.status) for each in oldest.deliveries] == [
        ("crm", Status.PENDING),
        ("sales", Status.PENDING),
    ]
    assert await store.events.page(Selection(before=newest.seq), (), limit=10) == [oldest]
    assert await store.events.page(Selection(), (), limit=1) == [newest]


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (Selection(id="b"), ["b"]),
        (Selection(source="second"), ["c"]),
        (Selection(kind="video.*"), ["d", "c"]),
        (Selection(kind="lead.captured"), ["b", "a"]),
        (Selection(since_ms=NOW_MS + 10), ["d", "c"]),
        (Selection(until_ms=NOW_MS + 10), ["b", "a"]),
        (Selection(email="ada@example.com"), ["c", "a"]),
        (Selection(email="ada@example.co"), []),
        (Selection(video="vid_1"), ["d", "b"]),
        (Selection(video="vid_1", kind="lead.captured"), ["b"]),
        (Selection(id="b' OR 1 --"), []),
    ],
)
async def test_a_selection_matches_all_of_its_fields(
    store: Store, selection: Selection, ids: Sequence[str]
) -> None:
    await accept(store, event("a", {"email": "Ada@Example.com"}))
    await accept(store, event("b", {"video": {"id": "vid_1"}}))
    viewer = {"viewer": {"email": "ada@example.com"}, "video": {"id": "vid_2"}}
    later = NOW_MS + 10
    await accept(store, event("c", viewer, kind="video.watched", source="second", at_ms=later))
    await accept(store, event("d", {"id": "vid_1"}, kind="video.ready", at_ms=later))
    assert await found(store, selection) == list(ids)


@pytest.mark.parametrize("selection", [Selection(video="v"), Selection(email="a@b.example")])
async def test_a_body_that_an_engine_cannot_parse_fails_no_search(
    store: Store, selection: Selection
) -> None:
    await accept(store, replace(event("deep"), body=b"[" * 3000 + b"]" * 3000))
    await accept(store, event("b", {"video": {"id": "v"}, "email": "a@b.example"}))
    assert await found(store, selection) == ["b"]


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        (Selection(outcome="pending"), ["new"]),
        (Selection(outcome="delivered"), ["done"]),
        (Selection(outcome="dead"), ["dead"]),
        (Selection(outcome="dead", reason="full"), ["dead"]),
        (Selection(outcome="dead", reason="elsewhere"), []),
        (Selection(outcome="dead", sink="crm"), []),
        (Selection(outcome="missed"), ["new", "dead", "done"]),
        (Selection(sink="crm"), []),
        (Selection(sink="sales"), ["new", "dead", "done"]),
        (Selection(reason="full"), ["dead"]),
        (Selection(sink="crm", reason="full"), []),
        (Selection(outcome="missed", sink="gone"), []),
        (Selection(outcome="missed", sink="crm"), ["new", "dead", "done"]),
        (Selection(outcome="missed", sink="sales"), ["dead"]),
    ],
)
async def test_events_are_found_by_outcome(
    store: Store, selection: Selection, ids: Sequence[str]
) -> None:
    await accept(store, event("done"))
    await settle(store)
    await accept(store, event("dead"))
    await settle(store, "dead", reason="the mailbox is full")
    await accept(store, event("new"))
    assert await found(store, selection) == list(ids)


async def test_a_history_holds_the_body_the_head_and_every_attempt(store: Store) -> None:
    await accept(store, event("a"))
    await settle(store, "retry", reason="no answer in time")
    await settle(store)
    (record,) = await store.events.page(Selection(), (), limit=1)
    history = await store.events.history(record.seq)
    assert history is not None
    assert (history.body, history.headers) == (event("a").body, b"host: relay\r\n")
    assert [(each.result, each.reason) for each in history.attempts] == [
        ("retry", "no answer in time"),
        ("delivered", ""),
    ]
    assert await store.events.history(record.seq + 1) is None


async def test_dead_letters_are_listed_and_counted_by_reason(store: Store) -> None:
    for name in ("a", "b"):
        await accept(store, event(name))
    await settle(store, "dead", reason="refused")
    await accept(store, event("c"))
    await settle(store, "dead", reason="too large")
    letters = await store.dead_letters.newest(Selection(), limit=10)
    assert [(each.id, each.sink, each.reason) for each in letters] == [
        ("c", "sales", "too large"),
        ("b", "sales", "refused"),
        ("a", "sales", "refused"),
    ]
    reasons = await store.dead_letters.reasons(Selection(sink="sales"))
    assert [(each.reason, each.count) for each in reasons] == [("refused", 2), ("too large", 1)]
    assert await store.dead_letters.reasons(Selection(sink="crm")) == []


async def test_each_reason_has_the_first_and_the_last_time_of_a_death(store: Store) -> None:
    await accept(store, *(event(f"e{n}", at_ms=NOW_MS + n) for n in range(4)), verdicts=[TAKES])
    ends = {0: ("refused", 40), 1: ("refused", 20), 2: ("too large", 30), 3: ("refused", 90)}
    for delivery in (await lease(store, now_ms=NOW_MS + 10)).deliveries:
        reason, later_ms = ends[delivery.seq - 1]
        given_up = settlement(delivery, "dead", at_ms=NOW_MS + later_ms, reason=reason)
        await store.settle(given_up)
    expected = [
        Reason("sales", "refused", 3, NOW_MS + 25, NOW_MS + 95),
        Reason("sales", "too large", 1, NOW_MS + 35, NOW_MS + 35),
    ]
    assert await store.dead_letters.reasons(Selection()) == expected
    assert await store.dead_letters.reasons(Selection(outcome="dead", sink="sales")) == expected
    assert await store.dead_letters.reasons(Selection(reason="large")) == expected[1:]
    early = await store.dead_letters.reasons(Selection(until_ms=NOW_MS + 2))
    assert early == [Reason("sales", "refused", 2, NOW_MS + 25, NOW_MS + 45)]


async def test_a_sinks_first_and_last_death_are_those_of_its_reasons_after_a_replay_too(
    store: Store,
) -> None:
    async def die(reason: str, at_ms: int) -> None:
        (delivery,) = (await lease(store, now_ms=at_ms)).deliveries
        await store.settle(settlement(delivery, "dead", at_ms=at_ms, reason=reason))

    for number, reason in enumerate(("first", "second", "third")):
        await accept(store, event(f"e{number}"))
        await die(reason, NOW_MS + 1000 * number)
    (oldest,) = await store.events.page(Selection(id="e0"), ROUTES, limit=1)
    await replay(store, Selection(outcome="dead"), oldest.seq)
    await die("again", NOW_MS + 9000)
    reasons = await store.dead_letters.reasons(Selection(sink="sales"))
    dead = (await store.overview(["sales"])).dead["sales"]
    assert dead.since_ms == min(each.first_ms or 0 for each in reasons)
    last = max(reasons, key=lambda each: each.last_ms or 0)
    assert (last.reason, dead.reason) == ("again", "again")


async def test_unreadable_requests_are_counted_by_source_and_reason(store: Store) -> None:
    assert await store.unreadable.reasons(UnreadableSelection()) == []
    for number, (source, reason) in enumerate(
        (("b", "no"), ("a", "no"), ("b", "no"), ("b", "bad"))
    ):
        request = unreadable(str(number).encode(), at_ms=NOW_MS - number)
        await store.keep(replace(request, source=source, reason=reason), lambda _: None)
    assert await store.unreadable.reasons(UnreadableSelection()) == [
        UnreadableReason("b", "no", 2, NOW_MS - 2, NOW_MS),
        UnreadableReason("a", "no", 1, NOW_MS - 1, NOW_MS - 1),
        UnreadableReason("b", "bad", 1, NOW_MS - 3, NOW_MS - 3),
    ]


async def test_the_overview_has_the_first_and_the_last_unreadable_request(store: Store) -> None:
    for number, later_ms in enumerate((0, 30, 70)):
        await store.keep(unreadable(b"%d" % number, at_ms=NOW_MS + later_ms), lambda _: None)
    overview = await store.overview(())
    assert (overview.unreadable_since_ms, overview.unreadable_ms) == (NOW_MS, NOW_MS + 70)
    (reason,) = await store.unreadable.reasons(UnreadableSelection())
    assert (reason.first_ms, reason.last_ms) == (NOW_MS, NOW_MS + 70)


async def test_unreadable_requests_are_listed(store: Store) -> None:
    await store.keep(unreadable(b"[]"), lambda _: None)
    (record,) = await store.unreadable.newest(UnreadableSelection(), limit=10)
    assert (record.reason, record.bytes) == ("the body is not JSON", 2)


async def test_discarded_dead_letters_no_longer_count(store: Store) -> None:
    await accept(store, event("a"), event("b"))
    await settle(store, "dead", reason="refused")
    assert await store.dead_letters.discard(Selection(id="a"), now_ms=NOW_MS) == 1
    assert (await store.backlogs())["sales"].dead == 1
    assert await statuses(store) == {("a", "sales"): "discarded", ("b", "sales"): "dead"}
    assert await store.dead_letters.discard(Selection(id="a"), now_ms=NOW_MS) == 0


async def test_many_are_discarded_in_steps_and_none_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.dead_letters.DISCARD_STEP_ROWS", 3)
    for number in range(10):
        await accept(store, event(f"e{number}"), verdicts=[TAKES, OTHER])
    await settle(store, "dead")
    await settle(store, "dead", sink="crm")
    assert await store.dead_letters.discard(Selection(), now_ms=NOW_MS) == 20
    assert set((await statuses(store)).values()) == {"discarded"}
    backlogs = await store.backlogs()
    assert [backlogs[sink].dead for sink in ("sales", "crm")] == [0, 0]


async def test_a_discard_ends_after_the_step_at_which_it_is_told_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.dead_letters.DISCARD_STEP_ROWS", 3)
    for number in range(10):
        await accept(store, event(f"e{number}"))
    await settle(store, "dead")
    told: list[int] = []

    def goes_on(count: int) -> bool:
        told.append(count)
        return count < 5

    discarded = await store.dead_letters.discard(Selection(), now_ms=NOW_MS, goes_on=goes_on)
    assert (discarded, told) == (6, [3, 6])


async def test_a_long_search_does_not_delay_other_operators(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr("relay.store.events.newest", lambda *_, **__: over.wait(30) and [])
    searching = asyncio.create_task(store.events.page(Selection(), (), limit=1))
    try:
        assert await store.events.history(1) is None
        assert not searching.done()
    finally:
        over.set()
    assert await searching == []


async def test_only_dead_letters_of_the_sink_are_discarded(store: Store) -> None:
    await accept(store, event("a"), verdicts=[TAKES, OTHER])
    await settle(store, "dead")
    await settle(store, "dead", sink="crm")
    assert await store.dead_letters.discard(Selection(sink="crm"), now_ms=NOW_MS) == 1
    assert await statuses(store) == {("a", "crm"): "discarded", ("a", "sales"): "dead"}


async def test_a_replayed_delivery_is_pending_again(store: Store) -> None:
    await accept(store, event("a"))
    await settle(store)
    opened = await replay(store, Selection(), 1)
    assert (opened.opened, opened.cursor, opened.state) == (1, 1, "running")
    (delivery,) = (await lease(store)).deliveries
    assert (delivery.event.id, delivery.attempts, delivery.replay) == ("a", 0, opened.id)
    assert (await store.backlogs())["sales"].pending == 1
    await store.settle(settlement(delivery))
    history = await store.events.history(1)
    assert history is not None
    assert [each.replay for each in history.attempts] == [None, opened.id]


async def test_a_replay_can_add_a_sink_to_an_event(store: Store) -> None:
    await accept(store, event("a"))
    await replay(store, Selection(), 1, sink="new")
    assert [each.event.id for each in (await lease(store, "new")).deliveries] == ["a"]


async def test_a_replay_leaves_pending_deliveries_alone(store: Store) -> None:
    await accept(store, event("a"))
    assert (await replay(store, Selection(), 1)).opened == 0
    (delivery,) = (await lease(store)).deliveries
    assert delivery.replay is None


@pytest.mark.parametrize(
    ("selection", "opened"),
    [
        (Selection(), 3),
        (Selection(outcome="missed"), 2),
        (Selection(outcome="dead"), 1),
        (Selection(outcome="delivered"), 1),
    ],
)
async def test_a_replay_opens_what_its_outcome_names(
    store: Store, selection: Selection, opened: int
) -> None:
    await accept(store, event("done"))
    await settle(store)
    await accept(store, event("dead"))
    await settle(store, "dead")
    await accept(store, event("unrouted"), verdicts=[])
    assert (await replay(store, selection, 1, 2, 3)).opened == opened


async def test_live_deliveries_are_leased_before_replayed_ones(store: Store) -> None:
    await accept(store, event("old"))
    await settle(store)
    await replay(store, Selection(), 1)
    await accept(store, event("live", at_ms=NOW_MS + 1))
    both = await lease(store, now_ms=NOW_MS + 1)
    assert [each.event.id for each in both.deliveries] == ["live", "old"]


async def test_a_replayed_event_does_not_make_the_backlog_old(store: Store) -> None:
    await accept(store, event("old"))
    await settle(store)
    await replay(store, Selection(), 1)
    assert (await store.backlogs())["sales"].oldest_ms is None


async def test_a_cancelled_replay_restores_every_status(store: Store) -> None:
    await accept(store, event("done"))
    await settle(store)
    await accept(store, event("unrouted"), verdicts=[])
    before = await statuses(store)
    begun = await replay(store, Selection(), 1, 2)
    ended = await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    assert ended.state == "cancelled"
    assert await statuses(store) == before
    assert (await store.backlogs())["sales"].pending == 0
    assert (
        await store.replays.open(ended, [PlannedDelivery(1, "sales")], cursor=1, now_ms=NOW_MS)
    ).opened == 0
    assert await statuses(store) == before


async def test_a_cancelled_replay_keeps_deliveries_in_flight(store: Store) -> None:
    await accept(store, event("a"))
    await settle(store, "dead")
    begun = await replay(store, Selection(), 1)
    (delivery,) = (await lease(store)).deliveries
    await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    await store.settle(settlement(delivery))
    assert await statuses(store) == {("a", "sales"): "delivered"}


async def until_withdrawn(store: Store) -> None:
    async with asyncio.timeout(10):
        while "pending" in (await statuses(store)).values():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("end", ["release", "reclaim"])
async def test_a_delivery_of_a_cancelled_replay_that_ends_unsettled_is_withdrawn(
    store: Store, end: str
) -> None:
    await accept(store, event("a"))
    await settle(store)
    begun = await replay(store, Selection(), 1)
    taken = (await lease(store)).deliveries
    await store.replays.end(begun, "cancelled", now_ms=NOW_MS)
    if end == "release":
        store.release(taken)
    else:
        await store.reclaim("sales")
    await until_withdrawn(store)
    assert await statuses(store) == {("a", "sales"): "delivered"}
    assert (await replays_of(store))[0].opened == 0


async def replays_of(store: Store) -> Sequence[Replay]:
    return await store.replays.newest(before=None, limit=10)


async def test_a_replay_is_known_after_a_restart(place: Place, clock: ManualClock) -> None:
    selection = Selection(kind="lead.*", sink="sales", since_ms=1)
    async with place.open(clock) as store:
        await accept(store, event("a"))
        await settle(store)
        begun = await replay(store, selection, 1)
    async with place.open(clock) as again:
        assert await again.replays.newest(before=None, limit=5) == [begun]
        assert await again.replays.one(begun.id) == begun
        assert begun.selection == selection
        assert await again.replays.under_way(begun.id) == {"sales": 1}


async def test_a_replay_selects_events_in_order_of_acceptance(
    store: Store,
) -> None:
    for name in ("a", "b", "c"):
        await accept(store, event(name))
    chosen = await store.replays.choose(Selection(), (), after=1, until=Mark(3, 0), limit=9)
    assert [(each.seq, each.event) for each in chosen] == [(2, event("b")), (3, event("c"))]
    assert chosen[0].standing == {"sales": ("pending", None)}
    assert len(await store.replays.choose(Selection(), (), after=0, until=Mark(2, 0), limit=9)) == 2
    assert len(await store.replays.choose(Selection(), (), after=0, until=Mark(3, 0), limit=1)) == 1


async def test_a_paused_sink_is_remembered(store: Store) -> None:
    await store.paused_sinks.pause("crm", now_ms=NOW_MS)
    await store.paused_sinks.pause("crm", now_ms=NOW_MS + 5)
    assert await store.paused_sinks.all() == {"crm": NOW_MS}
    await store.paused_sinks.resume("crm")
    assert await store.paused_sinks.all() == {}


async def test_an_event_without_its_body_is_listed_and_not_replayed(
    store: Store, place: Place
) -> None:
    await accept(store, event("a"))
    await settle(store)
    place.rows("UPDATE relay.events SET body = NULL, headers = NULL")
    (record,) = await store.events.page(Selection(), (), limit=9)
    assert record.bytes is None
    assert await store.replays.choose(Selection(), (), after=0, until=Mark(9, 9), limit=9) == []
    assert await found(store, Selection(email="ada@example.com")) == []
