"""Personal data, by e-mail address: what there is, its export and its erasure."""

import asyncio
from collections.abc import Callable, Sequence

from relay.core.clock import Clock
from relay.store.email_matcher import EmailMatcher
from relay.store.erasures import Erasure, ErasureLog, ErasureRecord, Order, Stored, unfinished
from relay.store.events import Events
from relay.store.personal_data_export import PersonalDataExport, Records
from relay.store.personal_data_places import PLACES, SCAN_ROWS, PersonalDataSearch
from relay.store.personal_data_removal import PersonalDataRemoval, Traces
from relay.store.repository import Connections
from relay.store.stepwise_erasure import ErasureRun


def always() -> bool:
    """Go on to the end."""
    return True


def nothing() -> None:
    """Report no progress."""


class PersonalData:
    """Personal data of the person with a whole e-mail address, which is case-insensitive.

    All methods may raise StoreError.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        search: PersonalDataSearch,
        removal: PersonalDataRemoval,
        erasures: ErasureLog,
        events: Events,
        clock: Clock,
    ) -> None:
        self._digests = connections.digests
        self._rollup = connections.rollup
        self._search = search
        self._removal = removal
        self._erasures = erasures
        self._export = PersonalDataExport(connections, search, events)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._run: ErasureRun | None = None
        """The last run, which may not have ended."""

    async def order(self, email: str, *, now_ms: int) -> int:
        """Order the erasure of a person's data up to now, unless one runs; return its number.

        Nothing is removed yet, but `advance` will, also after a restart. The ids of events stay, so
        that a late retry is a duplicate, and a record without the address.
        """
        person = self._digests.digest(self._address(email).folded)
        empty = Traces().erasure((), wiped=False, remains="")
        return await self._erasures.begin(person, unfinished(empty, Order(email)), now_ms=now_ms)

    async def advance(
        self, *, goes_on: Callable[[], bool] = always, progressed: Callable[[], None] = nothing
    ) -> bool:
        """Carry the oldest ordered erasure on to its end; False if there is none.

        After an error, a cancellation, or once `goes_on` is false between two steps, the next call
        goes on from there. `progressed` is called now and then.
        """
        if await self._erasures.unfinished() is None:
            return False
        async with self._lock, self._rollup:
            stored = await self._erasures.unfinished()
            if stored is None:
                return False
            if not await self._run_of(stored).carry_on(goes_on=goes_on, progressed=progressed):
                return False
            self._run = None
        await self._erasures.wipe()
        return True

    def _run_of(self, stored: Stored) -> ErasureRun:
        """Return the last run if it can go on, else a new one."""
        last = self._run
        if last is not None and (last.number, last.stored) == (stored.number, stored.report):
            return last
        run = ErasureRun(
            stored,
            search=self._search,
            removal=self._removal,
            erasures=self._erasures,
            address=self._address,
            clock=self._clock,
        )
        if last is not None and last.number == stored.number:
            run.discarded = last.discarded
        self._run = run
        return run

    async def erasure(self, number: int) -> ErasureRecord | None:
        return await self._erasures.one(number)

    async def erasures(self, *, limit: int, email: str | None = None) -> Sequence[ErasureRecord]:
        """Return the newest erasures, of one person or of all."""
        person = None if email is None else self._digests.digest(self._address(email).folded)
        return await self._erasures.newest(limit=limit, person=person)

    async def count(self, email: str) -> Erasure:
        """Count what an erasure would remove of the rows that exist now; changes nothing."""
        address, total = self._address(email), Traces()
        for place in PLACES:
            last = await self._search.last(place)
            start: int | None = 0
            while start is not None and start <= last:
                matches = await self._search.find(place, address, start=start, rows=SCAN_ROWS)
                start = matches.next
                if matches.rows:
                    total.add(await self._removal.preview(place, matches.keys))
        in_flight = list(self._removal.in_flight(total).values())
        return total.erasure(in_flight, wiped=False, remains="")

    async def records(self, email: str, *, after: str | None) -> Records:
        """Return a part of a person's data; `after` is the `next` of the previous part.

        Raises ValueError for an invalid `after`.
        """
        return await self._export.part(self._address(email), after=after)

    def _address(self, email: str) -> EmailMatcher:
        return EmailMatcher(email, number=self._digests.number(email))
