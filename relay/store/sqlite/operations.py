"""Operators' queries and changes in SQLite, with separate connections for reading."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from relay.core.delivery import Status
from relay.core.errors import StoreError
from relay.core.routing import Route
from relay.store.operations import GoesOn, always
from relay.store.overview import Overview
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
from relay.store.sqlite import due, operator_queries, operator_writes, queue, recent
from relay.store.sqlite import overview as sqlite_overview
from relay.store.sqlite import replays as replay_queries
from relay.store.sqlite.shared import Part, Shared
from relay.store.sqlite.withdrawals import Withdrawals

DISCARD_STEP_ROWS = 200
"""Dead letters discarded per transaction, so that acknowledgements are not delayed."""


class SqliteOperations(Part):
    """Fulfils `store.operations.Operations`; what may scan the whole store is a search."""

    def __init__(self, shared: Shared, withdrawals: Withdrawals) -> None:
        super().__init__(shared)
        self._withdrawals = withdrawals

    async def events(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        return await self._searcher.read(
            lambda db: operator_queries.events(db, selection, routes, limit=limit)
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
            lambda db: operator_queries.dead_letters(
                db, selection, sinks=self._with_dead(selection), limit=limit
            )
        )

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        return await self._searcher.read(lambda db: operator_queries.reasons(db, selection))

    async def discard(self, selection: Selection, *, now_ms: int, goes_on: GoesOn = always) -> int:
        dead = partial(
            operator_queries.dead,
            selection=selection,
            sinks=self._with_dead(selection),
            limit=DISCARD_STEP_ROWS,
        )
        count, up_to = 0, (await self.newest()).event
        while letters := await self._searcher.read(partial(dead, up_to=up_to)):
            discard = partial(operator_writes.discard, letters=letters, now_ms=now_ms)
            moved = await self._writer.transact(discard, self._shared.count)
            count -= sum(n for (_, status), n in moved.items() if status is Status.DEAD)
            up_to = letters[-1][0]
            if not goes_on(count):
                break
        return count

    def _with_dead(self, selection: Selection) -> list[str]:
        """Return the selected sinks that have dead letters."""
        tallies = self._shared.tallies.items()
        return [
            sink for sink, tally in tallies if tally[Status.DEAD] and selection.sink in (None, sink)
        ]

    async def mark(self, since_ms: int) -> Mark:
        return await self._searcher.read(lambda db: recent.mark(db, since_ms))

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        return await self._reader.read(lambda db: recent.accepted(db, after, limit=limit))

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        return await self._reader.read(lambda db: recent.attempted(db, after, limit=limit))

    async def sources(self) -> Sequence[str]:
        return await self._reader.read(lambda db: operator_queries.names(db, "source"))

    async def sinks(self) -> Sequence[str]:
        return await self._searcher.read(lambda db: operator_queries.names(db, "sink"))

    async def kinds(self) -> Sequence[str]:
        return await self._searcher.read(lambda db: operator_queries.names(db, "kind"))

    async def has_kind(self, glob: str) -> bool:
        return await self._searcher.read(lambda db: operator_queries.has_kind(db, glob))

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        moved = await self._writer.transact(
            lambda db: due.give_up(db, seq, sink, now_ms=now_ms), self._shared.count
        )
        return moved[sink, Status.DISCARDED] > 0

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
                db, selection, routes, after=after, until=until, limit=limit
            )
        )

    async def newest(self) -> Mark:
        return await self._reader.read(operator_queries.newest)

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        return await self._writer.transact(
            lambda db: operator_writes.begin(db, selection, total=total, until=until, now_ms=now_ms)
        )

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        # Below the floor, the free space is for deliveries that are pending already.
        self._room.require()
        step = operator_writes.Opening(replay.id, deliveries, cursor, now_ms)
        opened, _ = await self._writer.transact(
            lambda db: operator_writes.open_deliveries(db, step, self._shared.turns),
            self._count_opened,
        )
        return opened

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        if state == "cancelled":
            return await self._cancel(replay.id, now_ms)
        return await self._end(replay.id, state, now_ms)

    async def _end(self, number: int, state: ReplayState, now_ms: int) -> Replay:
        return await self._writer.transact(
            lambda db: operator_writes.end(db, number, state, now_ms=now_ms)
        )

    async def _cancel(self, number: int, now_ms: int) -> Replay:
        cancelled = self._shared.cancelled
        cancelled.add(number)
        try:
            ended = await self._end(number, "cancelled", now_ms)
        except StoreError:
            cancelled.discard(number)
            raise
        if ended.state != "cancelled":
            cancelled.discard(number)
            return ended
        # After the end is stored: an attempt that failed before left its delivery pending, and one
        # that fails later takes it back itself.
        try:
            return await self._withdrawals.withdraw(number)
        except StoreError:
            self._withdrawals.start([number])
            raise

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
        return await self._reader.read(lambda db: sqlite_overview.overview(db, sinks))

    async def pause(self, sink: str, *, now_ms: int) -> None:
        await self._writer.execute(operator_writes.PAUSE, sink, now_ms)

    async def resume(self, sink: str) -> None:
        await self._writer.execute(operator_writes.RESUME, sink)

    async def retry(self, sink: str) -> None:
        """There is no other relay."""

    async def paused(self) -> Mapping[str, int]:
        # A sink that begins waits for it.
        return await self._shared.leaser.read(operator_queries.paused)

    def _count_opened(self, result: tuple[Replay, operator_writes.Moved]) -> None:
        self._shared.count(result[1])
