"""Conformance suite of stores, against the protocol only."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from relay.core import sample_events
from relay.core.delivery import Attempt, Delivery, Result, Settlement
from relay.core.event import LEAD_CAPTURED, Event, Outcome, Unreadable
from relay.core.routing import Verdict
from relay.store import Backlog, LeasedBatch, Store, Tier
from relay.store.selection import Selection
from tests.conftest import NOW_MS, ManualClock

TAKES = Verdict("sales", "takes", "events and sources match")
OTHER = Verdict("crm", "takes", "events and sources match")
FAILS = Verdict("sales", "fails", "when failed: TypeError")

Open = Callable[[], AbstractAsyncContextManager[Store]]
"""Opens the same store again and again."""


@dataclass
class Shelf:
    """A store and its place, for tests that need more than the protocol."""

    open: Open
    clock: ManualClock
    deliveries: Callable[[], Awaitable[dict[tuple[str, str, str], tuple[str, str | None]]]]
    """Return status and reason by source, id and sink, read without the store."""
    attempts: Callable[[], Awaitable[list[tuple[str, str, str]]]]
    """Id, sink and result of each attempt."""
    unreadable: Callable[[], Awaitable[int]]
    noted: list[Outcome] = field(default_factory=list)


def event(
    event_id: str = "a", *, source: str = "main", at_ms: int = NOW_MS, seed: int = 0
) -> Event:
    made = sample_events.event(LEAD_CAPTURED, source=source, event_id=event_id, seed=seed)
    return replace(made, received_ms=at_ms)


def unreadable(body: bytes = b"[]", *, at_ms: int = NOW_MS) -> Unreadable:
    return Unreadable(
        source="main", received_ms=at_ms, body=body, headers=b"", reason="the body is not JSON"
    )


def settlement(
    delivery: Delivery,
    result: Result = "delivered",
    *,
    due_ms: int = NOW_MS,
    at_ms: int = NOW_MS,
    reason: str = "",
) -> Settlement:
    attempt = Attempt(
        started_ms=at_ms,
        duration_ms=5,
        result=result,
        status=200,
        reason=reason,
        answer="an answer",
    )
    return Settlement(delivery=delivery, attempt=attempt, due_ms=due_ms, counts=result != "parked")


async def accept(
    store: Store, *events: Event, verdicts: Sequence[Verdict] = (TAKES,)
) -> list[Outcome]:
    return await asyncio.gather(*(store.accept(each, verdicts, _unheard) for each in events))


async def lease(
    store: Store, sink: str = "sales", *, now_ms: int = NOW_MS, limit: int = 100
) -> LeasedBatch:
    limits: dict[Tier, int] = {"live": limit, "tried": limit, "replay": limit}
    return await store.lease(sink, now_ms=now_ms, limits=limits)


def ids(found: LeasedBatch) -> list[str]:
    return [delivery.event.id for delivery in found.deliveries]


def _unheard(_: Outcome) -> None:
    pass


class Accepting:
    """Events, duplicates, conflicts and unreadable requests."""

    async def test_a_new_event_is_accepted_with_a_delivery_per_verdict(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            assert await accept(store, event("a"), verdicts=[TAKES, OTHER]) == ["accepted"]
            for sink in ("sales", "crm"):
                found = await lease(store, sink)
                assert [each.event for each in found.deliveries] == [event("a")]
                assert [(each.attempts, each.first_attempt_ms) for each in found.deliveries] == [
                    (0, None)
                ]

    async def test_an_event_without_a_sink_is_stored(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            assert await accept(store, event("a"), verdicts=[]) == ["accepted"]
            assert await accept(store, event("a"), verdicts=[TAKES]) == ["duplicate"]
            assert await store.backlogs() == {}

    async def test_the_same_event_again_is_a_duplicate_that_changes_nothing(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            assert await accept(store, event("a")) == ["accepted"]
            again = event("a", at_ms=NOW_MS + 60_000)
            assert await accept(store, again, verdicts=[TAKES, OTHER]) == ["duplicate"]
            assert ids(await lease(store)) == ["a"]
            assert (await lease(store, "crm")).deliveries == ()

    async def test_a_known_id_with_another_body_is_a_conflict_and_keeps_the_first(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            await accept(store, event("a", seed=1))
            assert await accept(store, event("a", seed=2)) == ["conflict"]
            found = await lease(store)
            assert [each.event.body for each in found.deliveries] == [event("a", seed=1).body]

    async def test_two_sources_with_one_id_are_two_events(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            both = [event("a", source="main"), event("a", source="second")]
            assert await accept(store, *both) == ["accepted", "accepted"]
            assert {each.event.source for each in (await lease(store)).deliveries} == {
                "main",
                "second",
            }

    async def test_exactly_one_of_many_concurrent_copies_is_accepted(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            copies = [event("a")] * 40 + [event("b")] * 40 + [event("a", seed=9)] * 3
            assert Counter(await accept(store, *copies)) == {
                "accepted": 2,
                "duplicate": 78,
                "conflict": 3,
            }
            assert sorted(ids(await lease(store))) == ["a", "b"]

    async def test_many_events_at_once_keep_their_own_bodies(self, shelf: Shelf) -> None:
        events = [event(f"e{number}", seed=number) for number in range(600)]
        async with shelf.open() as store:
            assert set(await accept(store, *events)) == {"accepted"}
            found = await lease(store, limit=1000)
            assert {each.event.id: each.event for each in found.deliveries} == {
                each.id: each for each in events
            }

    async def test_a_rule_that_failed_makes_a_dead_letter_with_its_reason(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            assert await accept(store, event("a"), verdicts=[FAILS, OTHER]) == ["accepted"]
            assert (await lease(store)).deliveries == ()
            assert (await shelf.deliveries())["main", "a", "sales"] == (
                "dead",
                "when failed: TypeError",
            )
            assert (await store.backlogs())["sales"].dead == 1

    async def test_stored_is_called_once_before_the_caller_returns(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            for expected in ("accepted", "duplicate"):
                told: list[Outcome] = []
                assert await store.accept(event("a"), [TAKES], told.append) == expected
                assert told == [expected]

    async def test_stored_is_called_even_if_the_caller_was_cancelled(self, shelf: Shelf) -> None:
        told: list[Outcome] = []
        async with shelf.open() as store:
            waiting = asyncio.create_task(store.accept(event("a"), [TAKES], told.append))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await accept(store, event("b")) == ["accepted"]
            assert told == ["accepted"]
            assert (await store.backlogs())["sales"].pending == 2

    async def test_an_unreadable_request_is_kept_once_per_body(self, shelf: Shelf) -> None:
        told: list[Outcome] = []
        async with shelf.open() as store:
            for body in (b"[]", b"[]", b"{}", b"[]"):
                assert await store.keep(unreadable(body), told.append) == "unreadable"
            assert told == ["unreadable"] * 4
            assert await shelf.unreadable() == 2

    async def test_unusual_but_valid_values_survive(self, shelf: Shelf) -> None:
        odd = replace(
            event("\U0001f3ac ' \" % ? :a"),
            kind="naïve.kind",
            created_at=None,
            body=b"\x00\xff not text",
            headers=b"",
        )
        # Together, because an engine may read them as one value.
        events = [event("a"), odd, event('\n\x01["b\\'), replace(event("c"), headers=b"\x00\xfe")]
        async with shelf.open() as store:
            await accept(store, *events)
            assert [each.event for each in (await lease(store)).deliveries] == events


class Offering:
    """Offers of new deliveries, which a store may leave out."""

    async def test_a_delivery_is_taken_from_an_offer_or_leased_and_never_both(
        self, shelf: Shelf
    ) -> None:
        taken: list[Delivery] = []

        def offer(delivery: Delivery) -> bool:
            if delivery.seq % 2:
                return False
            taken.append(delivery)
            return True

        names = [f"e{number}" for number in range(8)]
        async with shelf.open() as store:
            for name in names:
                assert await store.accept(event(name), [TAKES], _unheard, offer) == "accepted"
            assert sorted(ids(await lease(store)) + [each.event.id for each in taken]) == names
            assert (await lease(store)).deliveries == ()
            await store.settle(*(settlement(each) for each in taken[:2]))
            store.release(taken[2:])
            assert ids(await lease(store)) == [each.event.id for each in taken[2:]]

    async def test_an_event_that_was_handed_over_is_due_again_after_a_restart(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            await store.accept(event("a"), [TAKES], _unheard, lambda _: True)
        async with shelf.open() as store:
            assert ids(await lease(store)) == ["a"]


class Leasing:
    """Leases of deliveries, and their due times."""

    async def test_the_longest_due_come_first(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            for event_id, age_ms in (("young", 1), ("old", 3000), ("middle", 20)):
                await accept(store, event(event_id, at_ms=NOW_MS - age_ms))
            assert ids(await lease(store)) == ["old", "middle", "young"]

    async def test_large_bodies_are_leased_few_at_a_time_and_none_is_left_behind(
        self, shelf: Shelf
    ) -> None:
        large = [replace(event(f"e{number}"), body=bytes(1 << 20)) for number in range(10)]
        async with shelf.open() as store:
            await accept(store, *large)
            first = await lease(store)
            assert 1 < len(first.deliveries) < len(large)
            assert first.next_due_ms == NOW_MS
            found = list(first.deliveries)
            while more := (await lease(store)).deliveries:
                found += more
            assert sorted(each.event.id for each in found) == sorted(each.id for each in large)

    async def test_only_due_deliveries_are_leased(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a", at_ms=NOW_MS + 1))
            early = await lease(store)
            assert (early.deliveries, early.next_due_ms) == ((), NOW_MS + 1)
            assert ids(await lease(store, now_ms=NOW_MS + 1)) == ["a"]

    async def test_a_leased_delivery_is_not_leased_again(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, *(event(f"e{number}") for number in range(10)))
            first = await lease(store, limit=4)
            second = await lease(store, limit=100)
            assert len(first.deliveries) == 4
            assert sorted(ids(first) + ids(second)) == sorted(f"e{number}" for number in range(10))
            assert (await lease(store)).deliveries == ()

    async def test_concurrent_leases_never_share_a_delivery(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, *(event(f"e{number:02}") for number in range(50)))
            found = await asyncio.gather(*(lease(store, limit=7) for _ in range(12)))
            handed_out = [event_id for each in found for event_id in ids(each)]
            assert len(handed_out) == len(set(handed_out))

    async def test_reclaimed_deliveries_are_due_at_once_unless_settled(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"), verdicts=[TAKES, OTHER])
            await lease(store, "crm")
            held = {each.event.id: each for each in (await lease(store)).deliveries}
            settling = asyncio.create_task(store.settle(settlement(held["a"])))
            await asyncio.sleep(0)
            # The caller is cancelled; the settlement is still queued.
            settling.cancel()
            await store.reclaim("sales")
            assert ids(await lease(store)) == ["b"]
            assert ids(await lease(store, "crm")) == []

    async def test_a_released_delivery_is_due_at_once(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"))
            found = await lease(store)
            store.release(found.deliveries[:1])
            assert ids(await lease(store)) == [found.deliveries[0].event.id]

    async def test_a_lease_is_of_one_sink(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), verdicts=[TAKES, OTHER])
            await lease(store, "sales")
            assert ids(await lease(store, "crm")) == ["a"]

    async def test_next_due_is_now_if_more_are_due_than_the_limit(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, *(event(f"e{number}") for number in range(5)))
            next_ms = (await lease(store, limit=3)).next_due_ms
            assert next_ms is not None
            assert next_ms <= NOW_MS

    async def test_next_due_is_the_earliest_due_time(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"), event("c", at_ms=NOW_MS + 90_000))
            for delivery in (await lease(store, limit=9)).deliveries:
                await store.settle(settlement(delivery, "retry", due_ms=NOW_MS + 40_000))
            found = await lease(store)
            assert (found.deliveries, found.next_due_ms) == ((), NOW_MS + 40_000)

    async def test_next_due_is_none_without_pending_deliveries(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            assert (await lease(store)).next_due_ms is None
            await accept(store, event("a"))
            found = await lease(store, limit=9)
            assert (len(found.deliveries), found.next_due_ms) == (1, None)


class Settling:
    """Outcomes of leased deliveries, and their counts."""

    async def test_a_retry_counts_and_is_due_at_its_time(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            (delivery,) = (await lease(store)).deliveries
            await store.settle(
                settlement(delivery, "retry", due_ms=NOW_MS + 1000, at_ms=NOW_MS + 7)
            )
            assert (await lease(store, now_ms=NOW_MS + 999)).deliveries == ()
            (again,) = (await lease(store, now_ms=NOW_MS + 1000)).deliveries
            assert (again.attempts, again.first_attempt_ms) == (1, NOW_MS + 7)
            assert (again.tries, again.tried_ms) == (1, NOW_MS + 7)

    async def test_a_parked_attempt_is_recorded_but_does_not_count(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            (delivery,) = (await lease(store)).deliveries
            await store.settle(settlement(delivery, "parked"))
            (again,) = (await lease(store)).deliveries
            assert (again.attempts, again.first_attempt_ms) == (0, None)
            assert (again.tries, again.tried_ms) == (1, NOW_MS)
            assert await shelf.attempts() == [("a", "sales", "parked")]

    async def test_delivered_and_dead_are_never_leased_again(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"))
            results: dict[str, Result] = {"a": "delivered", "b": "dead"}
            for each in (await lease(store)).deliveries:
                await store.settle(settlement(each, results[each.event.id], reason="422"))
            found = await lease(store, now_ms=NOW_MS + 10**10)
            assert (found.deliveries, found.next_due_ms) == ((), None)
            stored = await shelf.deliveries()
            assert stored["main", "a", "sales"][0] == "delivered"
            assert stored["main", "b", "sales"] == ("dead", "422")
            assert sorted(await shelf.attempts()) == [
                ("a", "sales", "delivered"),
                ("b", "sales", "dead"),
            ]

    async def test_concurrent_outcomes_are_all_written(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, *(event(f"e{number}") for number in range(300)))
            found = await lease(store, limit=300)
            await asyncio.gather(
                *(
                    store.settle(settlement(each, "dead" if each.seq % 3 else "delivered"))
                    for each in found.deliveries
                )
            )
            dead = sum(1 for each in found.deliveries if each.seq % 3)
            backlog = (await store.backlogs())["sales"]
            assert (backlog.pending, backlog.dead) == (0, dead)
            assert len(await shelf.attempts()) == 300

    async def test_a_delivery_that_has_changed_stays_as_it_is(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            (delivery,) = (await lease(store)).deliveries
            await store.settle(settlement(delivery, "delivered"))
            await store.settle(settlement(delivery, "dead", reason="late"))
            assert (await shelf.deliveries())["main", "a", "sales"] == ("delivered", None)
            backlog = (await store.backlogs())["sales"]
            assert (backlog.pending, backlog.dead) == (0, 0)

    async def test_an_outcome_of_an_older_attempt_changes_nothing(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            (old,) = (await lease(store)).deliveries
            await store.settle(settlement(old, "retry", due_ms=NOW_MS))
            (new,) = (await lease(store)).deliveries
            await store.settle(settlement(old, "dead"))
            await store.settle(settlement(new, "delivered"))
            assert (await shelf.deliveries())["main", "a", "sales"] == ("delivered", None)

    async def test_a_changed_delivery_does_not_affect_the_rest_of_its_batch(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            await accept(store, *(event(f"e{number}") for number in range(20)))
            found = (await lease(store)).deliveries
            await store.settle(settlement(found[7], "delivered"))
            await asyncio.gather(*(store.settle(settlement(each, "dead")) for each in found))
            backlog = (await store.backlogs())["sales"]
            assert (backlog.pending, backlog.dead) == (0, 19)
            statuses = Counter(status for status, _ in (await shelf.deliveries()).values())
            assert statuses == {"dead": 19, "delivered": 1}

    async def test_an_answer_that_is_not_valid_text_is_written(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"))
            first, second = (await lease(store)).deliveries
            said = replace(
                settlement(first, "dead", reason="no \ud800").attempt, answer="\udfff \0 é"
            )
            odd = Settlement(delivery=first, attempt=said, due_ms=NOW_MS)
            await store.settle(odd, settlement(second))
            stored = await shelf.deliveries()
            assert stored["main", "a", "sales"] in (("dead", "no ?"), ("dead", "no \ufffd"))
            assert stored["main", "b", "sales"] == ("delivered", None)
            assert len(await shelf.attempts()) == 2

    async def test_an_outcome_is_counted_even_if_the_caller_was_cancelled(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            (delivery,) = (await lease(store)).deliveries
            waiting = asyncio.create_task(store.settle(settlement(delivery, "delivered")))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await accept(store, event("b"))
            assert (await store.backlogs())["sales"].pending == 1
            assert ids(await lease(store)) == ["b"]


class Counting:
    """Backlogs, also over a restart."""

    async def test_backlogs_follow_each_step(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            assert await store.backlogs() == {}
            await accept(store, event("a", at_ms=NOW_MS - 50), event("b", at_ms=NOW_MS - 20))
            assert await _numbers(store) == (2, 0, NOW_MS - 50)
            first, second = (await lease(store)).deliveries
            assert await _numbers(store) == (2, 0, NOW_MS - 50)
            await store.settle(settlement(first, "dead"))
            assert await _numbers(store) == (1, 1, NOW_MS - 20)
            await store.settle(settlement(second, "delivered"))
            assert await _numbers(store) == (0, 1, None)

    async def test_a_restart_keeps_backlogs_events_and_attempts(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"), event("b"), event("c"))
            await store.keep(unreadable(), shelf.noted.append)
            deliveries = (await lease(store, limit=2)).deliveries
            await store.settle(settlement(deliveries[0], "retry", due_ms=NOW_MS + 5))
            await store.settle(settlement(deliveries[1], "dead"))
            before = await store.backlogs()
        async with shelf.open() as store:
            kept = {sink: replace(each, ended=0) for sink, each in before.items()}
            assert await store.backlogs() == kept
            assert await accept(store, event("a"), event("z")) == ["duplicate", "accepted"]
            again = await lease(store, now_ms=NOW_MS + 5)
            assert len(again.deliveries) == 3
            assert max(each.attempts for each in again.deliveries) == 1
            assert await shelf.unreadable() == 1

    async def test_a_backlog_counts_what_ended_and_what_waits_for_its_next_try(
        self, shelf: Shelf
    ) -> None:
        async with shelf.open() as store:
            await accept(store, *map(event, "abcde"))
            begun = (await store.backlogs())["sales"].ended
            deliveries = (await lease(store, limit=4)).deliveries
            await store.settle(settlement(deliveries[0]))
            await store.settle(settlement(deliveries[1], "dead"))
            await store.settle(settlement(deliveries[2], "retry", due_ms=NOW_MS + 60_000))
            await store.settle(settlement(deliveries[3], "retry", due_ms=NOW_MS))
            last = (await store.events.page(Selection(id="e"), (), limit=1))[0].seq
            assert await store.dead_letters.give_up(last, "sales", now_ms=NOW_MS)
            backlog = (await store.backlogs())["sales"]
            assert backlog.ended - begun == 3
            assert (backlog.pending, backlog.dead, backlog.retrying) == (2, 1, 1)

    async def test_leased_deliveries_are_due_after_a_restart(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("a"))
            await lease(store)
        async with shelf.open() as store:
            assert ids(await lease(store)) == ["a"]

    async def test_a_probe_accepts_an_event_and_leaves_no_trace_of_it(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await accept(store, event("before"))
            for size in (1, 1024, 100_000):
                await store.probe(size=size)
            await accept(store, event("after"))
            assert [each.events for each in store.totals("main")] == [2]
            assert list(store.totals("")) == []
            assert await store.backlogs() == {"sales": Backlog(2, 0, NOW_MS)}
            found = await store.events.page(Selection(), (), limit=9)
            assert [each.id for each in found] == ["after", "before"]
            assert len(await shelf.deliveries()) == 2


async def _numbers(store: Store) -> tuple[int, int, int | None]:
    backlog = (await store.backlogs())["sales"]
    return backlog.pending, backlog.dead, backlog.oldest_ms


@asynccontextmanager
async def closing(store: Any) -> AsyncIterator[Any]:
    """Close the store at the end of the block."""
    try:
        yield store
    finally:
        await store.close()
