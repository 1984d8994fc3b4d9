"""Operators' queries and changes in PostgreSQL, with separate connections for reading."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from relay.core.routing import Route
from relay.store.operations import GoesOn, always
from relay.store.overview import Overview
from relay.store.postgres import operator_queries, operator_writes, orders, queue, recent
from relay.store.postgres import overview as overviews
from relay.store.postgres import replays as replay_queries
from relay.store.postgres.shared import Part, Shared
from relay.store.postgres.text import storable
from relay.store.postgres.visible_numbers import VisibleNumbers
from relay.store.postgres.withdrawals import Withdrawals
from relay.store.records import (
    Accepted,
    Attempted,
    DeadLetter,
    EventRecord,
    History,
    Queued,
    Reason,
)
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayCandidate, ReplayState
from relay.store.selection import Selection

DISCARD_STEP_ROWS = 200
"""Dead letters discarded per transaction, so that acknowledgements are not delayed."""


class PostgresOperations(Part):
    """Fulfils `store.operations.Operations`; what may scan the whole store is a search."""

    def __init__(self, shared: Shared, withdrawals: Withdrawals) -> None:
        super().__init__(shared)
        self._background = shared.background
        self._withdrawals = withdrawals
        self._digests = shared.digests
        self._events = shared.events
        self._attempts = VisibleNumbers(shared.reader, "attempts", "number")

    async def events(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        return await self._searcher.read(
            lambda db: operator_queries.events(db, selection, routes, self._digests, limit=limit)
        )

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._reader.read(
            lambda db: operator_queries.named(db, beginning, source=source, limit=limit)
        )

    async def history(self, seq: int) -> History | None:
        return await self._reader.read(lambda db: operator_queries.history(db, seq))

    async def queued(self, seq: int) -> Sequence[Queued]:
        return await self._reader.read(lambda db: queue.queued(db, seq))

    async def dead_letters(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        return await self._searcher.read(
            lambda db: operator_queries.dead_letters(db, selection, self._digests, limit=limit)
        )

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        return await self._searcher.read(
            lambda db: operator_queries.reasons(db, selection, self._digests)
        )

    async def discard(self, selection: Selection, *, now_ms: int, goes_on: GoesOn = always) -> int:
        dead = partial(
            operator_queries.dead,
            selection=selection,
            digests=self._digests,
            limit=DISCARD_STEP_ROWS,
        )
        count, up_to = 0, (await self.newest()).event
        while letters := await self._searcher.read(partial(dead, up_to=up_to)):
            discard = partial(operator_writes.discard, letters=letters, now_ms=now_ms)
            count += await self._background.transact(discard)
            up_to = letters[-1][0]
            if not goes_on(count):
                break
        return count

    async def mark(self, since_ms: int) -> Mark:
        return await self._searcher.read(lambda db: recent.mark(db, since_ms))

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        until = await self._events.beyond(after)
        return await self._reader.read(lambda db: recent.accepted(db, after, until, limit=limit))

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        until = await self._attempts.beyond(after)
        return await self._reader.read(lambda db: recent.attempted(db, after, until, limit=limit))

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(lambda db: operator_queries.names(db, "source"))

    async def sinks(self) -> Sequence[str]:
        return await self._searcher.read(lambda db: operator_queries.names(db, "sink"))

    async def kinds(self) -> Sequence[str]:
        return await self._searcher.read(lambda db: operator_queries.names(db, "kind"))

    async def has_kind(self, glob: str) -> bool:
        return await self._searcher.read(lambda db: operator_queries.has_kind(db, glob))

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        given_up = await self._background.transact(
            lambda db: operator_writes.give_up(db, seq, storable(sink), now_ms=now_ms)
        )
        # The next one of its turn may be due earlier than those that were looked at last.
        self._shared.leases.walk_again([sink])
        self._shared.ended[sink] += given_up
        return given_up

    async def choose(
        self,
        selection: Selection,
        routes: Sequence[Route],
        *,
        after: int,
        until: Mark,
        limit: int,
    ) -> Sequence[ReplayCandidate]:
        return await self._reader.read(
            lambda db: replay_queries.choose(
                db, selection, routes, self._digests, after=after, until=until, limit=limit
            )
        )

    async def newest(self) -> Mark:
        # The event first: an attempt may be of an older one, but not of a newer.
        event = await self._events.last()
        return Mark(event, await self._reader.read(operator_queries.last_attempt))

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        number = await self._reader.read(operator_writes.draw_number)
        return await self._background.transact(
            lambda db: operator_writes.begin(
                db, number, selection, total=total, until=until, now_ms=now_ms
            )
        )

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        step = operator_writes.Opening(replay.id, deliveries, cursor, now_ms)
        return await self._background.transact(
            lambda db: operator_writes.open_deliveries(db, step, self._shared.turns)
        )

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        ended = await self._background.transact(
            lambda db: operator_writes.end(db, replay.id, state, now_ms=now_ms)
        )
        if ended.state != "cancelled":
            return ended
        return await self._withdrawals.withdraw(replay.id)

    async def replays(self, *, before: int | None, limit: int) -> Sequence[Replay]:
        return await self._reader.read(
            lambda db: replay_queries.replays(db, before=before, limit=limit)
        )

    async def replay(self, number: int) -> Replay | None:
        return await self._reader.read(lambda db: replay_queries.replay(db, number))

    async def running(self) -> Sequence[Replay]:
        return await self._reader.read(replay_queries.running)

    async def under_way(self, replay: int) -> Mapping[str, int]:
        return await self._reader.read(lambda db: replay_queries.under_way(db, replay))

    async def overview(self, sinks: Collection[str]) -> Overview:
        return await self._reader.read(lambda db: overviews.overview(db, sinks))

    async def pause(self, sink: str, *, now_ms: int) -> None:
        await self._background.transact(lambda db: operator_writes.pause(db, sink, now_ms=now_ms))

    async def resume(self, sink: str) -> None:
        await self._background.transact(lambda db: operator_writes.resume(db, sink))

    async def retry(self, sink: str) -> None:
        await self._background.transact(lambda db: orders.count_retry(db, storable(sink)))

    async def paused(self) -> Mapping[str, int]:
        # A sink that begins waits for it.
        return await self._shared.leaser.read(operator_queries.paused)
