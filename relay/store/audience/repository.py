"""The audience as a subject of the store: views, milestones and leads, counted after acceptance.

How relays take turns at it stays per engine: one process holds SQLite and locks in memory; members
lock rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from relay.core.errors import StoreFull
from relay.store.audience import AudienceQuery, Funnel, counting, rollup
from relay.store.audience.related import Related, related
from relay.store.audience.writes import AudienceWrites
from relay.store.repository import Repository

T = TypeVar("T")


class Audience(Repository, ABC):
    """Counts that outlive the events' bodies; all methods but `person` may raise StoreError."""

    _tables: ClassVar[type[AudienceWrites]]
    _round_to: int | None = None

    @abstractmethod
    async def fill(self) -> bool:
        """Count the next stored events; True if more may be left."""

    async def _count_round(self) -> bool:
        """Count the next of the events that there were when the round began; False at its end.

        Then the days have a turn, also while events come in faster than they are counted.
        """
        if self._round_to is None:
            self._round_to = await self.last_event()
        if await self.count(upto=self._round_to):
            return True
        self._round_to = None
        return False

    @abstractmethod
    async def count(self, *, upto: int | None = None) -> bool:
        """Do as `fill`, but without the rollup, up to an event or the last one; True for more.

        Also below the floor of free space, because retention depends on it.
        """

    @abstractmethod
    async def count_all(self) -> None:
        """Count every event that is stored by now."""

    @abstractmethod
    async def last_event(self) -> int:
        """Return the number of the last event, 0 if there is none."""

    def person(self, address: str) -> str:
        """Name the person with this address as `Selection.person`: a digest with the store's key.

        It is equal for all spellings of an address.
        """
        return f"{self._connections.digests.number(address):016x}"

    @abstractmethod
    async def sources(self) -> Sequence[str]:
        """Return every source that ever had an event."""

    async def related(self, seq: int, *, limit: int) -> Related | None:
        """Return the newest events of the same person and video; None if there is no such event.

        `limit` is the maximum number of each.
        """
        digests = self._connections.digests
        return await self._connections.pager.read(lambda db: related(db, seq, digests, limit=limit))

    async def funnel(self, question: AudienceQuery) -> Funnel:
        """Return the counts, after a bounded number of `fill` steps."""
        # Without them the result says up to when it counts.
        with suppress(StoreFull):
            await self._catch_up()
        while (answer := await self._ask(question)) is None:
            await self._reset()
        return answer

    async def _catch_up(self) -> None:
        upto = await self.last_event()
        for _ in range(counting.CATCH_UP_STEPS):
            self._connections.require_room()
            if not (await self.count(upto=upto) or await self._uncount()):
                break

    @abstractmethod
    async def _uncount(self) -> bool:
        """Remove views that were reconstructed, and whose original is counted; True if it did."""

    @abstractmethod
    async def _ask(self, question: AudienceQuery) -> Funnel | None:
        """Count within one snapshot; None if a stored day is damaged."""

    @abstractmethod
    async def _reset(self) -> None:
        """Remove all days, which are then made anew."""

    async def _store_week(self) -> bool:
        """Store the next week that is over; False if there is none."""
        week = await self._read(AudienceWrites.missing_week)
        if week is None:
            return False
        await self._write(partial(rollup.store_week, week=week))
        return True

    async def _read(self, work: Callable[[AudienceWrites], T]) -> T:
        return await self._reader.read(lambda db: work(self._tables(db)))

    @abstractmethod
    async def _write(self, work: Callable[[AudienceWrites], None]) -> None:
        """Change the days in a transaction, unless another relay does."""
