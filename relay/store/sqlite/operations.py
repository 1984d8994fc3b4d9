"""Operators' queries and changes in SQLite, with separate connections for reading."""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TypeVar

from relay.core.delivery import Status
from relay.core.errors import StoreError
from relay.core.routing import Route
from relay.store.operations import Accepted, Attempted, DeadLetter, EventRecord, History, Reason
from relay.store.overview import Overview
from relay.store.replays import Mark, PlannedDelivery, Replay, ReplayCandidate, ReplayState
from relay.store.selection import Selection
from relay.store.sqlite import disk, due, operator_queries, operator_writes, recent
from relay.store.sqlite import overview as sqlite_overview
from relay.store.sqlite import replays as replay_queries
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.operator_writes import Moved, Opening, Withdrawal, for_each
from relay.store.sqlite.ordering import OrderingKeys

T = TypeVar("T")

_BEGIN = for_each(operator_writes.begin)
_OPEN = for_each(operator_writes.open_deliveries)
_END = for_each(operator_writes.end)
_WITHDRAW = for_each(operator_writes.withdraw)
_DISCARD = for_each(operator_writes.discard)
_PAUSE = for_each(operator_writes.pause)
_RESUME = for_each(operator_writes.resume)

DISCARD_STEP_ROWS = 200
"""Dead letters discarded per transaction, so that acknowledgements are not delayed."""


class SqliteOperations:
    """Fulfils `store.operations.Operations`; shares the parts of its store."""

    def __init__(
        self,
        reader: Connection,
        writer: GroupCommit,
        *,
        searcher: Connection,
        room: disk.Room,
        tallies: MutableMapping[str, dict[Status, int]],
        leased: Mapping[str, set[int]],
        cancelled: set[int],
        turns: OrderingKeys,
    ) -> None:
        """`cancelled` collects the replays whose deliveries must not be leased."""
        self._reader = reader
        self._searcher = searcher
        self._writer = writer
        self._room = room
        self._tallies = tallies
        self._leased = leased
        self._cancelled = cancelled
        self._turns = turns

    async def events(
        self, selection: Selection, routes: Sequence[Route], *, limit: int
    ) -> Sequence[EventRecord]:
        return await self._search(
            lambda db: operator_queries.events(db, selection, routes, limit=limit)
        )

    async def named(
        self, beginning: str, *, source: str | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._read(
            lambda db: operator_queries.named(db, beginning, source=source, limit=limit)
        )

    async def history(self, seq: int) -> History | None:
        return await self._read(lambda db: operator_queries.history(db, seq))

    async def dead_letters(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        return await self._search(
            lambda db: operator_queries.dead_letters(db, selection, limit=limit)
        )

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        return await self._search(lambda db: operator_queries.reasons(db, selection))

    async def discard(self, selection: Selection, *, now_ms: int) -> int:
        count, up_to = 0, (await self.newest()).event
        while letters := await self._search(_dead(selection, up_to)):
            moved = await self._writer.submit(_DISCARD, (letters, now_ms), self.count)
            count -= sum(n for (_, status), n in moved.items() if status is Status.DEAD)
            up_to = letters[-1][0]
        return count

    async def mark(self, since_ms: int) -> Mark:
        return await self._search(lambda db: recent.mark(db, since_ms))

    async def accepted(self, after: int, *, limit: int) -> Sequence[Accepted]:
        return await self._read(lambda db: recent.accepted(db, after, limit=limit))

    async def attempted(self, after: int, *, limit: int) -> Sequence[Attempted]:
        return await self._read(lambda db: recent.attempted(db, after, limit=limit))

    async def sources(self) -> Sequence[str]:
        return await self._read(lambda db: operator_queries.names(db, "source"))

    async def sinks(self) -> Sequence[str]:
        return await self._search(lambda db: operator_queries.names(db, "sink"))

    async def kinds(self) -> Sequence[str]:
        return await self._search(lambda db: operator_queries.names(db, "kind"))

    async def has_kind(self, glob: str) -> bool:
        return await self._search(lambda db: operator_queries.has_kind(db, glob))

    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        moved = await self._writer.submit(due.give_up, (seq, sink, now_ms), self.count)
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
        return await self._read(
            lambda db: replay_queries.choose(
                db, selection, routes, after=after, until=until, limit=limit
            )
        )

    async def newest(self) -> Mark:
        return await self._read(operator_queries.newest)

    async def begin(self, selection: Selection, *, total: int, until: Mark, now_ms: int) -> Replay:
        return await self._writer.submit(_BEGIN, (selection, total, until, now_ms))

    async def open(
        self, replay: Replay, deliveries: Sequence[PlannedDelivery], *, cursor: int, now_ms: int
    ) -> Replay:
        # Below the floor, the free space is for deliveries that are pending already.
        self._room.require()
        turns = {
            (seq, sink): self._turns.replayed(sink, key)
            for seq, sink, key in deliveries
            if key is not None
        }
        step = Opening(replay, [each[:2] for each in deliveries], turns, cursor, now_ms)
        opened, _ = await self._writer.submit(_OPEN, step, self._count_opened)
        return opened

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        if state == "cancelled":
            return await self._cancel(replay.id, now_ms)
        return await self._writer.submit(_END, (replay.id, state, now_ms))

    async def _cancel(self, number: int, now_ms: int) -> Replay:
        self._cancelled.add(number)
        try:
            ended = await self._writer.submit(_END, (number, "cancelled", now_ms))
        except StoreError:
            self._cancelled.discard(number)
            raise
        if ended.state != "cancelled":
            self._cancelled.discard(number)
            return ended
        # Read after the end is stored: an attempt that failed before left its delivery pending, and
        # one that fails later takes it back itself.
        in_flight = frozenset((seq, sink) for sink, held in self._leased.items() for seq in held)
        withdrawal = Withdrawal(number, in_flight)
        withdrawn, _ = await self._writer.submit(_WITHDRAW, withdrawal, self._count_opened)
        return withdrawn

    async def replays(self, *, before: int | None, limit: int) -> Sequence[Replay]:
        return await self._read(lambda db: replay_queries.replays(db, before=before, limit=limit))

    async def replay(self, number: int) -> Replay | None:
        return await self._read(lambda db: replay_queries.replay(db, number))

    async def running(self) -> Sequence[Replay]:
        return await self._read(replay_queries.running)

    async def under_way(self, replay: int) -> Mapping[str, int]:
        return await self._read(lambda db: replay_queries.under_way(db, replay))

    async def overview(self, sinks: Collection[str]) -> Overview:
        return await self._read(lambda db: sqlite_overview.overview(db, sinks))

    async def pause(self, sink: str, *, now_ms: int) -> None:
        await self._writer.submit(_PAUSE, (sink, now_ms))

    async def resume(self, sink: str) -> None:
        await self._writer.submit(_RESUME, sink)

    async def paused(self) -> Mapping[str, int]:
        return await self._read(operator_queries.paused)

    def _count_opened(self, result: tuple[Replay, Moved]) -> None:
        self.count(result[1])

    def count(self, moved: Moved) -> None:
        """Update the tallies by the status changes of a write."""
        for (sink, status), change in moved.items():
            self._tallies[sink][status] += change

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await _run(self._reader, work)

    async def _search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query that may scan the whole store, on a connection of its own."""
        return await _run(self._searcher, work)


async def _run(connection: Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    try:
        return await connection.run(work)
    except sqlite3.Error as error:
        # Damage only fails the query: the store's own reads find it too, and end the process.
        raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _dead(
    selection: Selection, up_to: int
) -> Callable[[sqlite3.Connection], list[tuple[int, str]]]:
    return lambda db: operator_queries.dead(db, selection, up_to=up_to, limit=DISCARD_STEP_ROWS)
