"""Personal data in SQLite."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from relay.store.audience.rollup import forget_person
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import ErasureRecord
from relay.store.personal_data_parts import Record
from relay.store.personal_data_traces import Matches, Traces
from relay.store.sqlite import erasure_log, personal_data_export, personal_data_search
from relay.store.sqlite.audience_tables import SqliteAudienceTables
from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.personal_data_places import PLACES, Place
from relay.store.sqlite.shared import SqliteRepository
from relay.store.stepwise_erasure import Change, InFlight, Remains, Stored


class SqlitePersonalDataSteps(SqliteRepository):
    """Fulfils `relay.store.stepwise_personal_data.Steps`."""

    places = PLACES

    def alone(self) -> AbstractAsyncContextManager[object]:
        return self._shared.rollup

    async def last(self, place: Place) -> int:
        return await self._reader.read(partial(personal_data_search.last, place=place))

    async def find(self, place: Place, address: EmailMatcher, *, start: int, rows: int) -> Matches:
        return await self._reader.read(
            lambda db: personal_data_search.find(db, place, address, start=start, rows=rows)
        )

    async def preview(self, place: Place, keys: Sequence[int]) -> Traces:
        return await self._reader.read(lambda db: personal_data_search.preview(db, place, keys))

    async def remove(
        self,
        place: Place,
        keys: Sequence[int],
        change: Change,
        *,
        now_ms: int,
        done: Callable[[Traces], None],
    ) -> None:
        def remove(db: sqlite3.Connection) -> Traces:
            removed = personal_data_search.remove(db, place, keys, now_ms)
            erasure_log.note(db, change, removed)
            return removed

        def removed(traces: Traces) -> None:
            self._shared.count(traces.moved)
            done(traces)

        await self._writer.transact(remove, removed)

    async def note(self, change: Change) -> None:
        await self._writer.transact(lambda db: erasure_log.note(db, change, Traces()))

    def in_flight(self, traces: Traces) -> InFlight:
        return {
            (seq, sink): delivery
            for (seq, sink), delivery in traces.discarded.items()
            if seq in self._shared.leased.get(sink, ())
        }

    async def leases_made(self) -> None:
        await self._shared.leaser.read(lambda _: None)

    async def begin(self, person: bytes, report: str, *, now_ms: int) -> int:
        return await self._writer.transact(
            lambda db: erasure_log.begin(db, person, report, now_ms=now_ms)
        )

    async def unfinished(self) -> Stored | None:
        return await self._reader.read(erasure_log.unfinished)

    async def end(self, change: Change, address: EmailMatcher, *, now_ms: int) -> None:
        def end(db: sqlite3.Connection) -> None:
            if address.number is not None:
                forget_person(SqliteAudienceTables(db), address.number)
            erasure_log.end(db, change, now_ms=now_ms)

        await self._writer.transact(end)

    async def wipe(self) -> Remains:
        return erasure_log.remains(wiped=await self._shared.wiper.wipe())

    async def erasure(self, number: int) -> ErasureRecord | None:
        return await self._reader.read(lambda db: erasure_log.one(db, number))

    async def newest(self, *, limit: int, person: bytes | None) -> Sequence[ErasureRecord]:
        return await self._reader.read(
            lambda db: erasure_log.newest(db, limit=limit, person=person)
        )

    async def records(
        self, place: Place, address: EmailMatcher, keys: Sequence[int]
    ) -> Sequence[Record]:
        return await self._reader.read(
            lambda db: personal_data_export.records(db, place.name, address, keys)
        )
