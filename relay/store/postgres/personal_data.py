"""Personal data in PostgreSQL."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from relay.core.delivery import Status
from relay.store.audience.reads import COUNTED_TO, ROLLED_TO
from relay.store.audience.rollup import forget_person
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import ErasureRecord
from relay.store.personal_data_parts import Record
from relay.store.personal_data_traces import Matches, Traces
from relay.store.postgres import (
    erasure_log,
    orders,
    personal_data_export,
    personal_data_search,
)
from relay.store.postgres.audience_tables import PostgresAudienceTables, wait_for
from relay.store.postgres.driver import Database
from relay.store.postgres.personal_data_places import PLACES, Place
from relay.store.postgres.shared import PostgresRepository
from relay.store.postgres.vacuum import ERASABLE
from relay.store.stepwise_erasure import Change, InFlight, Remains, Stored


class PostgresPersonalDataSteps(PostgresRepository):
    """Fulfils `relay.store.stepwise_personal_data.Steps`."""

    places = PLACES

    def alone(self) -> AbstractAsyncContextManager[object]:
        # Each transaction locks what it changes, because other relays count too.
        return nullcontext()

    async def last(self, place: Place) -> int:
        match place.name:
            case "events":
                await self._shared.events.last()
            case "views":
                # A count that began before the events lost their bodies has ended then.
                await self._shared.background.transact(lambda db: wait_for(db, COUNTED_TO))
        return await self._reader.read(lambda db: personal_data_search.last(db, place))

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
        def remove(db: Database) -> Traces:
            removed = personal_data_search.remove(db, place, keys, now_ms)
            erasure_log.note(db, change, removed)
            return removed

        def removed(traces: Traces) -> None:
            for (sink, status), count in traces.moved.items():
                if status is Status.PENDING:
                    self._shared.ended[sink] -= count
            done(traces)

        await self._shared.background.transact(remove, removed)

    async def note(self, change: Change) -> None:
        await self._shared.background.transact(lambda db: erasure_log.note(db, change, Traces()))

    def in_flight(self, traces: Traces) -> InFlight:
        return {
            (seq, sink): delivery
            for (seq, sink), delivery in traces.discarded.items()
            if self._shared.leases.is_held(sink, seq)
            # It is unknown which of its due deliveries another relay is sending.
            or ((seq, sink) in traces.owned and not self._shared.fences.holds(sink))
        }

    async def leases_made(self) -> None:
        await self._shared.leaser.read(lambda _: None)

    async def begin(self, person: bytes, report: str, *, now_ms: int) -> int:
        number = await self._shared.draw("erasures")

        def begin(db: Database) -> int:
            # The relay that does the maintenance carries it on.
            orders.count(db)
            return erasure_log.begin(db, number, person, report, now_ms=now_ms)

        return await self._shared.background.transact(begin)

    async def unfinished(self) -> Stored | None:
        return await self._reader.read(erasure_log.unfinished)

    async def end(self, change: Change, address: EmailMatcher, *, now_ms: int) -> None:
        def end(db: Database) -> None:
            if address.number is not None:
                wait_for(db, ROLLED_TO)
                forget_person(PostgresAudienceTables(db), address.number)
            erasure_log.end(db, change, now_ms=now_ms)
            # Other relays let go of what they have read ahead.
            orders.count(db)

        await self._shared.background.transact(end)

    async def wipe(self) -> Remains:
        return erasure_log.remains(vacuumed=await self._shared.vacuum.run(*ERASABLE))

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
