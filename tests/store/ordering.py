"""Conformance suite of ordered deliveries, against the protocol only."""

import random
from collections import defaultdict

from relay.core.delivery import Delivery, Result
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store import FirstDue, Store
from tests.conftest import NOW_MS
from tests.store.conformance import Shelf, accept, event, ids, lease, settlement

HOUR_MS = 3_600_000


def of_key(key: str | None, sink: str = "sales") -> Verdict:
    return Verdict(sink, "takes", "events and sources match", key)


async def arrive(store: Store, key: str | None, *names: str, at_ms: int = NOW_MS) -> None:
    """Accept events of one ordering key."""
    events = (event(name, at_ms=at_ms) for name in names)
    assert set(await accept(store, *events, verdicts=[of_key(key)])) == {"accepted"}


async def take(store: Store, *, now_ms: int = NOW_MS) -> dict[str, Delivery]:
    return {each.event.id: each for each in (await lease(store, now_ms=now_ms)).deliveries}


class Ordering:
    """A sink gets the events of one key one at a time, in order of acceptance."""

    async def test_one_event_of_a_key_is_leased_and_all_of_other_keys(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1", "a2", "a3")
            await arrive(store, "video 2", "b1", "b2")
            await arrive(store, None, "x", "y")
            assert sorted(await take(store)) == ["a1", "b1", "x", "y"]
            found = await lease(store, now_ms=NOW_MS + HOUR_MS)
            assert (found.deliveries, found.next_due_ms) == ((), None)

    async def test_the_next_is_due_at_once_when_its_predecessor_has_ended(
        self, shelf: Shelf
    ) -> None:
        ends: list[Result] = ["delivered", "dead", "delivered"]
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1", "a2", "a3")
            for name, end in zip(("a1", "a2", "a3"), ends, strict=True):
                taken = await take(store)
                assert list(taken) == [name]
                await store.settle(settlement(taken[name], end))
            found = await lease(store)
            assert (found.deliveries, found.next_due_ms) == ((), None)

    async def test_a_retry_holds_its_successors_until_it_succeeds(self, shelf: Shelf) -> None:
        later_ms = NOW_MS + HOUR_MS
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1", "a2")
            await arrive(store, "video 2", "b1")
            taken = await take(store)
            await store.settle(settlement(taken["a1"], "retry", due_ms=later_ms))
            await store.settle(settlement(taken["b1"]))
            found = await lease(store, now_ms=later_ms - 1)
            assert (found.deliveries, found.next_due_ms) == ((), later_ms)
            taken = await take(store, now_ms=later_ms)
            assert list(taken) == ["a1"]
            await store.settle(settlement(taken["a1"]))
            assert list(await take(store, now_ms=later_ms)) == ["a2"]

    async def test_a_parked_or_released_delivery_keeps_its_place(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1", "a2")
            taken = await take(store)
            await store.settle(settlement(taken["a1"], "parked"))
            taken = await take(store)
            assert list(taken) == ["a1"]
            store.release(list(taken.values()))
            assert list(await take(store)) == ["a1"]

    async def test_a_new_delivery_waits_only_for_pending_ones(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1")
            taken = await take(store)
            await arrive(store, "video 1", "a2")
            assert await take(store) == {}
            await store.settle(settlement(taken["a1"]))
            await store.settle(settlement((await take(store))["a2"]))
            await arrive(store, "video 1", "a3")
            assert list(await take(store)) == ["a3"]

    async def test_sinks_do_not_wait_for_one_another(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            verdicts = [of_key("video 1"), of_key("video 1", "crm"), of_key(None, "free")]
            await accept(store, event("a1"), event("a2"), verdicts=verdicts)
            assert list(await take(store)) == ["a1"]
            assert ids(await lease(store, "crm")) == ["a1"]
            assert ids(await lease(store, "free")) == ["a1", "a2"]

    async def test_the_order_survives_a_restart(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await arrive(store, "video 1", "a1", "a2")
            await take(store)
        async with shelf.open() as store:
            await arrive(store, "video 1", "a3")
            for name in ("a1", "a2", "a3"):
                taken = await take(store)
                assert list(taken) == [name]
                await store.settle(settlement(taken[name]))

    async def test_an_older_receipt_that_is_accepted_later_comes_later(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            await arrive(store, "video 1", "new")
            await arrive(store, "video 1", "old", at_ms=NOW_MS - HOUR_MS)
            assert list(await take(store)) == ["new"]

    async def test_the_first_due_delivery_of_a_sink_is_known(self, shelf: Shelf) -> None:
        later_ms, sinks = NOW_MS + HOUR_MS, ("sales", "crm")
        async with shelf.open() as store:
            nothing, idle = FirstDue(), dict.fromkeys(sinks, 0)
            assert await store.first_due(idle, now_ms=NOW_MS) == dict.fromkeys(sinks, nothing)
            await arrive(store, "video 1", "a1", "a2")
            found = await store.first_due(idle, now_ms=later_ms)
            assert found == {"sales": FirstDue(due_ms=NOW_MS, is_held=True), "crm": nothing}
            assert await store.first_due({}, now_ms=later_ms) == {}
            # All that is free is under way; what is held waits for it.
            beside = await store.first_due({"sales": 1, "crm": 1}, now_ms=later_ms)
            assert beside == {"sales": FirstDue(is_held=True), "crm": nothing}

            # Leased or not.
            taken = await take(store)
            assert await store.first_due(idle, now_ms=later_ms) == found

            await store.settle(settlement(taken["a1"], "retry", due_ms=later_ms))
            found = await store.first_due(idle, now_ms=later_ms - 1)
            assert found["sales"] == FirstDue(is_held=True)
            found = await store.first_due(idle, now_ms=later_ms)
            assert found["sales"] == FirstDue(due_ms=later_ms, is_held=True)

            await arrive(store, None, "free", at_ms=NOW_MS + 1)
            found = await store.first_due(idle, now_ms=later_ms - 1)
            assert found["sales"] == FirstDue(due_ms=NOW_MS + 1, is_held=True)

    async def test_a_duplicate_takes_no_place_in_the_order(self, shelf: Shelf) -> None:
        async with shelf.open() as store:
            verdicts = [of_key("video 1"), of_key("video 1", "crm")]
            outcomes = await accept(
                store, event("a1"), event("a1"), event("a2"), event("a2"), verdicts=verdicts
            )
            assert outcomes == ["accepted", "duplicate", "accepted", "duplicate"]
            assert await accept(store, event("a1"), verdicts=[]) == ["duplicate"]
            for name in ("a1", "a2"):
                taken = await take(store)
                assert list(taken) == [name]
                await store.settle(settlement(taken[name]))
            assert (await store.backlogs())["sales"].pending == 0

    async def test_a_failed_rule_holds_no_delivery(self, shelf: Shelf) -> None:
        fails = Verdict("sales", "fails", "when failed: TypeError")
        async with shelf.open() as store:
            await accept(store, event("dead"), verdicts=[fails, of_key("video 1", "crm")])
            await arrive(store, "video 1", "a1")
            assert list(await take(store)) == ["a1"]
            assert (await shelf.deliveries())["main", "dead", "sales"] == ("dead", fails.why)

    async def test_each_key_stays_in_order_over_any_steps(self, shelf: Shelf) -> None:
        for seed in range(4):
            dice = random.Random(seed)
            async with shelf.open() as store:
                walk = Walk(store, dice, prefix=f"{seed}-")
                for _ in range(120):
                    await dice.choice((walk.arrive, walk.take, walk.settle, walk.settle))()
                await walk.finish()
            assert walk.ended == walk.accepted


class Walk:
    """Random steps; the accepted events of each key, and the order in which they ended."""

    KEYS = (None, "video 1", "video 2", "video 3")

    def __init__(self, store: Store, dice: random.Random, *, prefix: str) -> None:
        self.accepted: defaultdict[str, list[str]] = defaultdict(list)
        self.ended: defaultdict[str, list[str]] = defaultdict(list)
        self._store = store
        self._random = dice
        self._prefix = prefix
        self._count = 0
        self._now_ms = NOW_MS
        self._keys: dict[str, str | None] = {}
        self._held: dict[str, Delivery] = {}

    async def arrive(self) -> None:
        key = self._random.choice(self.KEYS)
        made = [self._event(key) for _ in range(self._random.randrange(1, 4))]
        await accept(self._store, *made, verdicts=[of_key(key)])

    async def take(self) -> None:
        limit = self._random.randrange(1, 6)
        found = await lease(self._store, now_ms=self._now_ms, limit=limit)
        self._held |= {each.event.id: each for each in found.deliveries}
        keys = [self._keys[name] for name in self._held if self._keys[name] is not None]
        assert len(keys) == len(set(keys))

    async def settle(self) -> None:
        self._now_ms += self._random.randrange(500)
        if self._held:
            results: list[Result] = ["delivered", "delivered", "dead", "retry", "parked"]
            await self._settle(
                self._random.choice(sorted(self._held)), self._random.choice(results)
            )

    async def finish(self) -> None:
        """Let all that is left be delivered."""
        while self._held or (await self._store.backlogs())["sales"].pending:
            self._now_ms += 1000
            await self.take()
            for name in sorted(self._held):
                await self._settle(name, "delivered")

    async def _settle(self, name: str, result: Result) -> None:
        due_ms = self._now_ms + self._random.randrange(900)
        made = settlement(self._held.pop(name), result, due_ms=due_ms, at_ms=self._now_ms)
        await self._store.settle(made)
        key = self._keys[name]
        if key is not None and result in ("delivered", "dead"):
            self.ended[key].append(name)

    def _event(self, key: str | None) -> Event:
        name = f"{self._prefix}{self._count}"
        self._count += 1
        self._keys[name] = key
        if key is not None:
            self.accepted[key].append(name)
        return event(name, at_ms=self._now_ms)
