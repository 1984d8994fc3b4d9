"""The operators' side of the SQLite store: reads on connections of its own, writes on the one."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import TypeVar

from relay.delivery import Status
from relay.errors import StoreError
from relay.store import disk, orders, recent, search, walk
from relay.store.desk import (
    Accepted,
    Attempted,
    Chosen,
    DeadLetter,
    EventRecord,
    History,
    Mark,
    Reason,
    Replay,
    ReplayState,
    Selection,
    Wanted,
)
from relay.store.driver import Connection, sqlite3
from relay.store.orders import Ending, Moved, Opening, each
from relay.store.turns import Turns
from relay.store.writer import Writer, meaning

T = TypeVar("T")

_BEGIN = each(orders.begin)
_OPEN = each(orders.open_deliveries)
_END = each(orders.end)
_DISCARD = each(orders.discard)
_PAUSE = each(orders.pause)
_RESUME = each(orders.resume)

STEP = 200
"""Dead letters that are discarded at once, so that acknowledgements come in between."""


class SqliteDesk:
    """Fulfils `relay.store.desk.Desk`; lives as long as the store whose parts it shares."""

    def __init__(
        self,
        reader: Connection,
        writer: Writer,
        *,
        searcher: Connection,
        room: disk.Room,
        tallies: MutableMapping[str, dict[Status, int]],
        leased: Mapping[str, set[int]],
        turns: Turns,
    ) -> None:
        self._reader = reader
        self._searcher = searcher
        self._writer = writer
        self._room = room
        self._tallies = tallies
        self._leased = leased
        self._turns = turns

    async def events(
        self, selection: Selection, *, before: int | None, limit: int
    ) -> Sequence[EventRecord]:
        return await self._search(
            lambda db: search.events(db, selection, before=before, limit=limit)
        )

    async def history(self, seq: int) -> History | None:
        return await self._read(lambda db: search.history(db, seq))

    async def dead_letters(
        self, selection: Selection, *, before: int | None, limit: int
    ) -> Sequence[DeadLetter]:
        return await self._search(
            lambda db: search.dead_letters(db, selection, before=before, limit=limit)
        )

    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        return await self._search(lambda db: search.reasons(db, selection))

    async def discard(self, selection: Selection, *, now_ms: int) -> int:
        count, up_to = 0, await self.last()
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

    async def choose(
        self, selection: Selection, *, after: int, until: int, limit: int
    ) -> Sequence[Chosen]:
        return await self._read(
            lambda db: walk.choose(db, selection, after=after, until=until, limit=limit)
        )

    async def last(self) -> int:
        return await self._read(search.last)

    async def begin(self, selection: Selection, *, total: int, until: int, now_ms: int) -> Replay:
        return await self._writer.submit(_BEGIN, (selection, total, until, now_ms))

    async def open(
        self, replay: Replay, deliveries: Sequence[Wanted], *, cursor: int, now_ms: int
    ) -> Replay:
        # The rest of the disk is for what is under way already.
        self._room.require()
        turns = {
            (seq, sink): self._turns.replayed(sink, key)
            for seq, sink, key in deliveries
            if key is not None
        }
        step = Opening(replay, [each[:2] for each in deliveries], turns, cursor, now_ms)
        opened, _ = await self._writer.submit(_OPEN, step, self._counted)
        return opened

    async def end(self, replay: Replay, state: ReplayState, *, now_ms: int) -> Replay:
        leased = frozenset((seq, sink) for sink, held in self._leased.items() for seq in held)
        ending = Ending(replay, state, leased, now_ms)
        ended, _ = await self._writer.submit(_END, ending, self._counted)
        return ended

    async def replays(self, *, limit: int) -> Sequence[Replay]:
        return await self._read(lambda db: walk.replays(db, limit=limit))

    async def replay(self, number: int) -> Replay | None:
        return await self._read(lambda db: walk.replay(db, number))

    async def running(self) -> Sequence[Replay]:
        return await self._read(walk.running)

    async def under_way(self, replay: int) -> Mapping[str, int]:
        return await self._read(lambda db: walk.under_way(db, replay))

    async def pause(self, sink: str, *, now_ms: int) -> None:
        await self._writer.submit(_PAUSE, (sink, now_ms))

    async def resume(self, sink: str) -> None:
        await self._writer.submit(_RESUME, sink)

    async def paused(self) -> Mapping[str, int]:
        return await self._read(search.paused)

    def _counted(self, result: tuple[Replay, Moved]) -> None:
        self.count(result[1])

    def count(self, moved: Moved) -> None:
        """Take note of deliveries whose status a write has changed."""
        for (sink, status), change in moved.items():
            self._tallies[sink][status] += change

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await _ask(self._reader, work)

    async def _search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read what can take as long as the store is large: nothing else is to wait for it."""
        return await _ask(self._searcher, work)


async def _ask(connection: Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    try:
        return await connection.run(work)
    except sqlite3.Error as error:
        # A damaged page is found by the store's own reads as well, which end the process.
        raise meaning(error) or StoreError(f"the store cannot be read: {error}") from None


def _dead(
    selection: Selection, up_to: int
) -> Callable[[sqlite3.Connection], list[tuple[int, str]]]:
    return lambda db: search.dead(db, selection, up_to=up_to, limit=STEP)
