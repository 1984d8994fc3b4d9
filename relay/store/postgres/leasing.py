"""Leases of due deliveries, and the outcomes that end them."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from functools import partial

from relay.core.clock import Clock
from relay.core.delivery import STATUS_AFTER, Delivery, Settlement, Status
from relay.store import LeasedBatch, Tier
from relay.store.postgres import due, reconstruct
from relay.store.postgres import due_queries as queries
from relay.store.postgres import settle as settling
from relay.store.postgres.driver import Database
from relay.store.postgres.due_queries import Due, DueDeliveries, DueQuery, PageRequest
from relay.store.postgres.fences import NotOwned
from relay.store.postgres.leases import Held, SinkLeases
from relay.store.postgres.settle import Outcome
from relay.store.postgres.shared import PostgresRepository, Shared
from relay.store.tiers import Position, spans


class Leasing(PostgresRepository):
    """Leases deliveries to the dispatchers of this relay; in memory, since a sink has one owner."""

    def __init__(self, shared: Shared, clock: Clock) -> None:
        super().__init__(shared)
        self._clock = clock
        self._leases = shared.leases
        self._fences = shared.fences

    async def lease(self, sink: str, *, now_ms: int, limits: Mapping[Tier, int]) -> LeasedBatch:
        """Fulfil `Store.lease`."""
        if not self._fences.holds(sink):
            return LeasedBatch((), None)
        leases = self._leases.under(sink, self._fences.fence(sink))
        taken: list[Due] = []
        try:
            next_ms = await self._lease_all(taken, leases, sink, now_ms, limits)
            taken = await self._not_withdrawn(taken, leases)
        except BaseException as error:
            # One of several reads has failed, and nobody is told of what the others took.
            for each in taken:
                leases.release(each.delivery.seq)
            if not isinstance(error, NotOwned):
                raise
            if leases.fence is not None:
                self._fences.lost(sink, leases.fence)
            return LeasedBatch((), None)
        return LeasedBatch(
            tuple(each.delivery for each in taken if not each.is_damaged),
            next_ms,
            tuple(each.delivery for each in taken if each.is_damaged),
        )

    async def _lease_all(
        self,
        taken: list[Due],
        leases: SinkLeases,
        sink: str,
        now_ms: int,
        limits: Mapping[Tier, int],
    ) -> int | None:
        """Add to `taken` what is leased; return the time of the next read. Raises NotOwned."""
        left = dict(limits)
        times: list[int] = []
        taken += await self._lease_firsts(leases, sink, now_ms, left, times)
        wanted = {tier: limit for tier, limit in left.items() if limit > 0}
        if len(wanted) < len(left):
            times.append(now_ms)
        if wanted:
            query = self._query(leases, sink, now_ms)
            taken += await self._lease_next(leases, query, wanted, times)
        return min(times, default=None)

    async def _not_withdrawn(self, taken: list[Due], leases: SinkLeases) -> list[Due]:
        """Note the leases of reconstructions, which other relays ask for when originals arrive."""
        reconstructed = [each.delivery for each in taken if each.delivery.event.reconstructed]
        if not reconstructed:
            return taken
        noted = await asyncio.gather(
            *(self._writer.submit(reconstruct.lease, each) for each in reconstructed)
        )
        withdrawn = {
            each.seq for each, is_leased in zip(reconstructed, noted, strict=True) if not is_leased
        }
        for each in reconstructed:
            if each.seq in withdrawn:
                leases.settled(each, None)
        return [each for each in taken if each.delivery.seq not in withdrawn]

    async def _lease_firsts(
        self, leases: SinkLeases, sink: str, now_ms: int, left: dict[Tier, int], times: list[int]
    ) -> list[Due]:
        """Lease the next deliveries of turns whose last one has ended, and count down `left`.

        They get half of each limit at most: older deliveries of other turns would otherwise wait
        as long as these turns have any.
        """
        turns = frozenset(leases.ended_turns)
        if not turns:
            return []
        query = self._query(leases, sink, now_ms)
        share = {tier: math.ceil(limit / 2) for tier, limit in left.items()}
        limit = sum(share.values())
        find = partial(queries.first_of_turns, query=query, turns=list(turns), limit=limit)
        due, beyond = await self._shared.leaser.read(find)
        if beyond:
            times.append(now_ms)
        wanted = []
        for each in due:
            if share.get(each.tier, 0) > 0:
                share[each.tier] -= 1
                left[each.tier] -= 1
                wanted.append(each)
            elif each.delivery.turn is not None:
                beyond |= {each.delivery.turn}
        leases.ended_turns -= turns - beyond
        return self._take(leases, wanted)

    async def _lease_next(
        self, leases: SinkLeases, query: DueQuery, limits: Mapping[Tier, int], times: list[int]
    ) -> list[Due]:
        """Lease the next deliveries of some tiers; add the times of the next read to `times`."""
        begun_s = self._clock.monotonic()
        walks = {tier: leases.walks[tier] for tier in limits}
        wanted = {
            tier: PageRequest(walks[tier].next(begun_s, now_ms=query.now_ms), limit)
            for tier, limit in limits.items()
        }

        def find(db: Database) -> tuple[DueDeliveries, float]:
            started_s = self._clock.monotonic()
            pages = queries.due_pages(db, query, wanted)
            return pages, self._clock.monotonic() - started_s

        (pages, next_ms), took_s = await self._shared.leaser.read(find)
        now_s = self._clock.monotonic()
        if next_ms is not None:
            times.append(next_ms)
        taken: list[Due] = []
        for tier, page in pages.items():
            walk = walks[tier]
            walk.read(wanted[tier].behind, took_s=took_s, now_s=now_s)
            taken += self._take(leases, page.due)
            is_unfinished = page.more or len(page.due) == limits[tier]
            # Due times that changed during the read have begun a new walk; a release may be behind.
            has_changed = leases.walks.get(tier) is not walk or walk.has_passed(query.now_ms)
            if is_unfinished or has_changed:
                walk.stopped(page.last, now_ms=query.now_ms)
                times.append(query.now_ms)
            elif (again_s := walk.ended(page.last, now_ms=query.now_ms)) is not None:
                times.append(query.now_ms + max(1, round((again_s - now_s) * 1000)))
        return taken

    def _query(self, leases: SinkLeases, sink: str, now_ms: int) -> DueQuery:
        # The leases from before the read: a delivery that is settled during the read is no longer
        # leased, but the read may still see it as pending.
        return DueQuery(
            sink=sink,
            fence=leases.fence,
            now_ms=now_ms,
            leased=list(leases.held),
            busy=leases.turns(),
        )

    def _take(self, leases: SinkLeases, due: Sequence[Due]) -> list[Due]:
        # Meanwhile another lease may have taken some.
        busy = set(leases.turns())
        free = [
            each
            for each in due
            if each.delivery.seq not in leases.held and each.delivery.turn not in busy
        ]
        for tier, position, delivery, _ in free:
            leases.held[delivery.seq] = Held(tier, position, delivery.turn)
        return free

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Fulfil `Store.release`."""
        for delivery in deliveries:
            if (leases := self._leases.get(delivery.sink)) is not None:
                leases.release(delivery.seq)

    async def settle(self, *settlements: Settlement) -> None:
        """Fulfil `Store.settle`."""
        under = [self._leases_of(each.delivery.sink) for each in settlements]
        outcomes = [
            Outcome(each, leases.fence) for each, leases in zip(settlements, under, strict=True)
        ]

        def done(written: Sequence[bool]) -> None:
            # The sink may have been lost and acquired again meanwhile.
            for outcome, leases, is_written in zip(outcomes, under, written, strict=True):
                delivery = outcome.settlement.delivery
                stays = STATUS_AFTER[outcome.settlement.attempt.result] is Status.PENDING
                due_ms = outcome.settlement.due_ms if stays else None
                leases.settled(delivery, due_ms)
                self._shared.ended[delivery.sink] += is_written and not stays
                if not is_written and outcome.fence is not None:
                    self._fences.lost(delivery.sink, outcome.fence)

        await self._writer.submit(settling.settle, outcomes, done)

    def _leases_of(self, sink: str) -> SinkLeases:
        """Return the leases under the fence of the last one."""
        return self._leases.get(sink) or self._leases.under(sink, self._fences.fence(sink))

    async def reclaim(self, sink: str) -> None:
        """Fulfil `Store.reclaim`."""
        # Settlements are written in order, even if their callers were cancelled.
        await self._writer.catch_up()
        self._leases.clear(sink)

    async def bring_forward(
        self, sink: str, *, beyond_ms: int, to_ms: int, now_ms: int, only: int | None = None
    ) -> int:
        """Fulfil `Store.bring_forward`."""
        count = 0
        if only is None:
            last = await self._shared.leaser.read(due.last_event)
        for span in spans(beyond_ms=beyond_ms, to_ms=to_ms, now_ms=now_ms):
            ahead: Position | None = span.end
            while ahead is not None:
                if only is None:
                    step = partial(due.step, ahead=ahead, last=last)
                else:
                    step = partial(due.single, event=only)
                moved, ahead = await self._shared.background.run(
                    partial(step, sink=sink, span=span, now_ms=now_ms)
                )
                if moved and (leases := self._leases.get(sink)) is not None:
                    leases.due_again(span.tier, span.due)
                count += moved
        return count
