"""Personal data in SQLite: searched on a reader, removed in small transactions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from relay.core.errors import StoreError
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import Erasure, ErasureRecord, Records, UnderWay
from relay.store.sqlite import erasure_log, personal_data_export, personal_data_search
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit, classify
from relay.store.sqlite.keys import PersonDigests
from relay.store.sqlite.operator_writes import Moved, for_each
from relay.store.sqlite.personal_data_places import PLACES, Place, Traces
from relay.store.sqlite.personal_data_search import Matches
from relay.store.sqlite.secure_delete import Wiper

T = TypeVar("T")

_BEGIN = for_each(erasure_log.begin)
_END = for_each(erasure_log.end)
_REMOVE = for_each(personal_data_search.remove)


class SqlitePersonalData:
    """Fulfils `store.personal_data.PersonalData`; shares the parts of its store."""

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
        """`leases_made` returns once every earlier lease is in `leased`."""
        self._reader = reader
        self._writer = writer
        self._wiper = wiper
        self._digests = digests
        self._leased = leased
        self._leases_made = leases_made
        self._count = count
        self._lock = asyncio.Lock()

    async def erase(self, email: str, *, now_ms: int) -> Erasure:
        address = self._address(email)
        async with self._lock:
            number = await self._writer.submit(_BEGIN, (address.folded, now_ms))
            total, under_way = await self._erase(address, now_ms)
            # A lease may have read an event before its erasure, and return it afterwards.
            await self._leases_made()
            in_flight = list((under_way | self._in_flight(total)).values())
            report = total.erasure(in_flight, wiped=False)
            await self._writer.submit(_END, (number, now_ms, report))
        return total.erasure(in_flight, wiped=await self._wiper.wipe())

    async def _erase(
        self, address: EmailMatcher, now_ms: int
    ) -> tuple[Traces, dict[tuple[int, str], UnderWay]]:
        total = Traces()
        under_way: dict[tuple[int, str], UnderWay] = {}

        def done(removed: Traces) -> None:
            self._count(removed.moved)
            total.add(removed)
            under_way.update(self._in_flight(removed))

        for place in PLACES:
            async for matches in self._matches(place, address):
                if not place.removal:
                    total.add(await self._preview(place, matches))
                    continue
                for removal in personal_data_search.removals(place, matches, now_ms=now_ms):
                    await self._writer.submit(_REMOVE, removal, done)
        return total, under_way

    async def count(self, email: str) -> Erasure:
        address = self._address(email)
        total = Traces()
        for place in PLACES:
            async for matches in self._matches(place, address):
                total.add(await self._preview(place, matches))
        return total.erasure(list(self._in_flight(total).values()), wiped=False)

    async def erasures(self, *, limit: int) -> Sequence[ErasureRecord]:
        return await self._read(lambda db: erasure_log.newest(db, limit=limit))

    async def records(self, email: str, *, after: str | None) -> Records:
        address, cursor = self._address(email), personal_data_export.Cursor.parse(after)
        records: list[Any] = []
        size = 0
        for _ in range(personal_data_export.PART_STEPS):
            step, bytes_, cursor = await self._read(_step(address, cursor))
            records += step
            size += bytes_
            if personal_data_export.is_over(cursor) or size > personal_data_export.PART_BYTES:
                break
        return personal_data_export.part(records, cursor)

    async def _matches(self, place: Place, address: EmailMatcher) -> AsyncIterator[Matches]:
        """Yield matches among the rows that existed at the start, step by step."""
        last = await self._read(lambda db: personal_data_search.last(db, place))
        start: int | None = 0
        while start is not None and start <= last:
            matches = await self._read(_search(place, address, start))
            start = matches.next
            if matches.rows:
                yield matches

    async def _preview(self, place: Place, matches: Matches) -> Traces:
        return await self._read(lambda db: personal_data_search.preview(db, place, matches))

    def _address(self, email: str) -> EmailMatcher:
        return EmailMatcher(email, number=self._digests.number(email))

    def _in_flight(self, traces: Traces) -> dict[tuple[int, str], UnderWay]:
        return {
            (seq, sink): delivery
            for (seq, sink), delivery in traces.discarded.items()
            if seq in self._leased.get(sink, ())
        }

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await self._reader.run(work)
        except sqlite3.Error as error:
            raise classify(error) or StoreError(f"the store cannot be read: {error}") from None


def _search(
    place: Place, address: EmailMatcher, start: int
) -> Callable[[sqlite3.Connection], Matches]:
    return lambda db: personal_data_search.find(db, place, address, start=start)


def _step(
    address: EmailMatcher, cursor: personal_data_export.Cursor
) -> Callable[[sqlite3.Connection], tuple[list[Any], int, personal_data_export.Cursor]]:
    return lambda db: personal_data_export.read_step(db, address, cursor)
