"""A person's data in a SQLite store: looked for beside the work, removed in small transactions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from relay.core.errors import StoreError
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import Erasure, ErasureRecord, Records, UnderWay
from relay.store.sqlite import erasure_log, personal_data_export, personal_data_search
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, meaning
from relay.store.sqlite.keys import PersonDigests
from relay.store.sqlite.operator_writes import Moved, each
from relay.store.sqlite.personal_data_places import PLACES, Place, Traces
from relay.store.sqlite.personal_data_search import Found
from relay.store.sqlite.secure_delete import Wiper

T = TypeVar("T")

_BEGIN = each(erasure_log.begin)
_END = each(erasure_log.end)
_REMOVE = each(personal_data_search.remove)


class SqlitePersonalData:
    """Fulfils `store.personal_data.People`; lives as long as the store whose parts it shares."""

    def __init__(
        self,
        reader: Connection,
        writer: GroupCommit,
        wiper: Wiper,
        *,
        digests: PersonDigests,
        leased: Mapping[str, set[int]],
        leases_made: Callable[[], Awaitable[None]],
        count: Callable[[Moved], None],
    ) -> None:
        """`leases_made` returns once every lease that was asked for before is in `leased`."""
        self._reader = reader
        self._writer = writer
        self._wiper = wiper
        self._digests = digests
        self._leased = leased
        self._leases_made = leases_made
        self._count = count
        self._turn = asyncio.Lock()

    async def erase(self, email: str, *, now_ms: int) -> Erasure:
        address = self._address(email)
        async with self._turn:
            number = await self._writer.submit(_BEGIN, (address.folded, now_ms))
            total, under_way = await self._erase(address, now_ms)
            # A lease may have been read before its event went, and be handed out after that.
            await self._leases_made()
            arriving = list((under_way | self._at_work(total)).values())
            report = total.erasure(arriving, wiped=False)
            await self._writer.submit(_END, (number, now_ms, report))
        return total.erasure(arriving, wiped=await self._wiper.wipe())

    async def _erase(
        self, address: EmailMatcher, now_ms: int
    ) -> tuple[Traces, dict[tuple[int, str], UnderWay]]:
        total = Traces()
        under_way: dict[tuple[int, str], UnderWay] = {}

        def done(removed: Traces) -> None:
            self._count(removed.moved)
            total.add(removed)
            under_way.update(self._at_work(removed))

        for place in PLACES:
            async for found in self._found(place, address):
                if not place.removal:
                    total.add(await self._look(place, found))
                    continue
                for removal in personal_data_search.removals(place, found, now_ms=now_ms):
                    await self._writer.submit(_REMOVE, removal, done)
        return total, under_way

    async def count(self, email: str) -> Erasure:
        address = self._address(email)
        total = Traces()
        for place in PLACES:
            async for found in self._found(place, address):
                total.add(await self._look(place, found))
        return total.erasure(list(self._at_work(total).values()), wiped=False)

    async def erasures(self, *, limit: int) -> Sequence[ErasureRecord]:
        return await self._read(lambda db: erasure_log.newest(db, limit=limit))

    async def records(self, email: str, *, after: str | None) -> Records:
        address, cursor = self._address(email), personal_data_export.Cursor.parse(after)
        records: list[Any] = []
        size = 0
        for _ in range(personal_data_export.PART_STEPS):
            found, bytes_, cursor = await self._read(_step(address, cursor))
            records += found
            size += bytes_
            if personal_data_export.is_over(cursor) or size > personal_data_export.PART_BYTES:
                break
        return personal_data_export.part(records, cursor)

    async def _found(self, place: Place, address: EmailMatcher) -> AsyncIterator[Found]:
        """What was there when the search began, some rows at a time."""
        last = await self._read(lambda db: personal_data_search.last(db, place))
        start: int | None = 0
        while start is not None and start <= last:
            found = await self._read(_search(place, address, start))
            start = found.next
            if found.rows:
                yield found

    async def _look(self, place: Place, found: Found) -> Traces:
        return await self._read(lambda db: personal_data_search.look(db, place, found))

    def _address(self, email: str) -> EmailMatcher:
        return EmailMatcher(email, number=self._digests.number(email))

    def _at_work(self, found: Traces) -> dict[tuple[int, str], UnderWay]:
        return {
            (seq, sink): each
            for (seq, sink), each in found.cut.items()
            if seq in self._leased.get(sink, ())
        }

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise meaning(error) or StoreError(f"the store cannot be read: {error}") from None


def _search(
    place: Place, address: EmailMatcher, start: int
) -> Callable[[sqlite3.Connection], Found]:
    return lambda db: personal_data_search.find(db, place, address, start=start)


def _step(
    address: EmailMatcher, cursor: personal_data_export.Cursor
) -> Callable[[sqlite3.Connection], tuple[list[Any], int, personal_data_export.Cursor]]:
    return lambda db: personal_data_export.look(db, address, cursor)
