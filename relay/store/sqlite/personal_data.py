"""Personal data in SQLite: searched on a reader, removed in small transactions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from relay.store.audience.rollup import forget_person
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import Erasure, ErasureRecord, Records, UnderWay
from relay.store.sqlite import erasure_log, personal_data_export, personal_data_search
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.personal_data_places import PLACES, Place, Traces
from relay.store.sqlite.personal_data_search import Matches
from relay.store.sqlite.shared import Part, Shared


class SqlitePersonalData(Part):
    """Fulfils `store.personal_data.PersonalData`."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._lock = asyncio.Lock()

    async def erase(self, email: str, *, now_ms: int) -> Erasure:
        address = self._address(email)
        async with self._lock, self._shared.rollup:
            person = self._shared.digests.digest(address.folded)
            number = await self._writer.transact(
                lambda db: erasure_log.begin(db, person, now_ms=now_ms)
            )
            total, under_way = await self._erase(address, now_ms)
            # A lease may have read an event before its erasure, and return it afterwards.
            await self._leases_made()
            in_flight = list((under_way | self._in_flight(total)).values())
            report = total.erasure(in_flight, wiped=False)

            def end(db: sqlite3.Connection) -> None:
                forget_person(SqliteAudienceTables(db), self._shared.digests.number(address.folded))
                erasure_log.end(db, number, report, now_ms=now_ms)

            await self._writer.transact(end)
        return total.erasure(in_flight, wiped=await self._shared.wiper.wipe())

    async def _erase(
        self, address: EmailMatcher, now_ms: int
    ) -> tuple[Traces, dict[tuple[int, str], UnderWay]]:
        total = Traces()
        under_way: dict[tuple[int, str], UnderWay] = {}

        def done(removed: Traces) -> None:
            self._shared.count(removed.moved)
            total.add(removed)
            under_way.update(self._in_flight(removed))

        async for place, matches in self._matches(address):
            if not place.removal:
                total.add(await self._preview(place, matches))
                continue
            remove = partial(personal_data_search.remove, place=place, now_ms=now_ms)
            for keys in personal_data_search.removals(place, matches):
                await self._writer.transact(partial(remove, keys=keys), done)
        return total, under_way

    async def count(self, email: str) -> Erasure:
        address = self._address(email)
        total = Traces()
        async for place, matches in self._matches(address):
            total.add(await self._preview(place, matches))
        return total.erasure(list(self._in_flight(total).values()), wiped=False)

    async def erasures(self, *, limit: int, email: str | None = None) -> Sequence[ErasureRecord]:
        address = None if email is None else self._address(email)
        person = None if address is None else self._shared.digests.digest(address.folded)
        return await self._reader.read(
            lambda db: erasure_log.newest(db, limit=limit, person=person)
        )

    async def records(self, email: str, *, after: str | None) -> Records:
        address, cursor = self._address(email), personal_data_export.Cursor.parse(after)
        records: list[Any] = []
        size = 0
        for _ in range(personal_data_export.PART_STEPS):
            step, bytes_, cursor = await self._reader.read(
                partial(personal_data_export.read_step, address=address, cursor=cursor)
            )
            records += step
            size += bytes_
            if personal_data_export.is_over(cursor) or size > personal_data_export.PART_BYTES:
                break
        return personal_data_export.part(records, cursor)

    async def _matches(self, address: EmailMatcher) -> AsyncIterator[tuple[Place, Matches]]:
        """Yield matches among the rows that existed at the start, place by place, in steps."""
        for place in PLACES:
            find = partial(personal_data_search.find, place=place, address=address)
            last = await self._reader.read(partial(personal_data_search.last, place=place))
            start: int | None = 0
            while start is not None and start <= last:
                matches = await self._reader.read(partial(find, start=start))
                start = matches.next
                if matches.rows:
                    yield place, matches

    async def _preview(self, place: Place, matches: Matches) -> Traces:
        return await self._reader.read(lambda db: personal_data_search.preview(db, place, matches))

    def _address(self, email: str) -> EmailMatcher:
        return EmailMatcher(email, number=self._shared.digests.number(email))

    def _in_flight(self, traces: Traces) -> dict[tuple[int, str], UnderWay]:
        return {
            (seq, sink): delivery
            for (seq, sink), delivery in traces.discarded.items()
            if seq in self._shared.leased.get(sink, ())
        }

    async def _leases_made(self) -> None:
        """Return once every earlier lease is in `leased`."""
        await self._shared.leaser.read(lambda _: None)
