"""One erasure in small transactions, each of which also stores how far it is.

The relay that carries it on reads that and does the rest, also after an error or a restart.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from relay.core.clock import Clock
from relay.store.email_matcher import EmailMatcher
from relay.store.erasures import Erasure, ErasureLog, Order, Stored, Unfinished, unfinished
from relay.store.personal_data_places import (
    PLACES,
    SCAN_ROWS,
    PersonalDataPlace,
    PersonalDataSearch,
)
from relay.store.personal_data_removal import InFlight, PersonalDataRemoval, ReportChange, Traces

SCAN_S = 0.05
"""Time that later steps aim at."""

SCAN_GROWTH = 8
"""Factor up to which they grow: small rows take less than the way to a database and back."""

STEP_ROWS = 50
STEP_BYTES = 1 << 20
"""Limits per transaction, which others wait for."""

NOTE_S = 1.0
"""Time after which a search that finds nothing stores how far it is."""

FoundRow = tuple[int, int]
"""Key and size of a row."""


class ErasureRun:
    """Carries one erasure on, from where it is in the store."""

    def __init__(
        self,
        stored: Stored,
        *,
        search: PersonalDataSearch,
        removal: PersonalDataRemoval,
        erasures: ErasureLog,
        address: Callable[[str], EmailMatcher],
        clock: Clock,
    ) -> None:
        self._search = search
        self._removal = removal
        self._erasures = erasures
        self._begun_ms = stored.begun_ms
        self.number = stored.number
        self.stored = stored.report
        """The report as it is in the store."""
        self.discarded = Traces()
        """The discarded deliveries: a lease under way may have read one of them before."""
        report = msgspec.json.decode(stored.report or "", type=Unfinished)
        self._address = address(report.order.email)
        self._total = Traces.of(report)
        self._order = self._of_these_places(report.order)
        self._before = report.under_way
        self._under_way: InFlight = {}
        self._clock = clock
        self._noted_s = clock.monotonic()

    def _of_these_places(self, order: Order) -> Order:
        """Begin anew where a relay that searches other places, or in another order, stopped."""
        names = [place.name for place in PLACES]
        if list(order.places) == names:
            return order
        for place in PLACES:
            if place.is_kept:  # counted anew
                self._total.rows[place.name] = 0
        return replace(order, places=names, place=0, start=0)

    async def carry_on(
        self, *, goes_on: Callable[[], bool], progressed: Callable[[], None]
    ) -> bool:
        """Do the rest, and return True; False once `goes_on` is, between two steps.

        After that, or after an error, it can be called again.
        """
        sizes = [await self._search.last(place) + 1 for place in PLACES]
        for number in range(self._order.place, len(PLACES)):
            place, start = PLACES[number], self._order.start
            # Of the rows that exist now; what comes later belongs to another erasure.
            last = await self._search.last(place)
            found: list[FoundRow] = []
            rows = SCAN_ROWS
            while start <= last:
                if not goes_on():
                    return False
                began_s = self._clock.monotonic()
                matches = await self._search.find(place, self._address, start=start, rows=rows)
                is_quick = self._clock.monotonic() - began_s < SCAN_S
                rows = min(2 * rows, SCAN_GROWTH * SCAN_ROWS) if is_quick else SCAN_ROWS
                start = last + 1 if matches.next is None else matches.next
                found = await self._remove(place, [*found, *matches.rows], is_last=start > last)
                done = sum(sizes[:number]) + min(start, sizes[number])
                self._order = replace(
                    self._order,
                    start=found[0][0] if found else start,
                    share=done / max(1, sum(sizes)),
                )
                if self._clock.monotonic() - self._noted_s >= NOTE_S:
                    await self._note()
                    progressed()
            self._order = replace(self._order, place=number + 1, start=0)
        await self._end()
        return True

    async def _remove(
        self, place: PersonalDataPlace, found: Sequence[FoundRow], *, is_last: bool
    ) -> list[FoundRow]:
        """Remove rows, as many at a time as a transaction takes; return those that do not fill one.

        The last ones need not fill one.
        """
        if place.is_kept:
            if found:
                self._total.add(await self._removal.preview(place, [key for key, _ in found]))
            return []
        parts = list(_parts(place, found))
        rest = [] if is_last or not parts else parts.pop()
        for part in parts:
            await self._remove_part(place, [key for key, _ in part])
        return rest

    async def _remove_part(self, place: PersonalDataPlace, keys: Sequence[int]) -> None:
        texts: list[str] = []

        def after(removed: Traces) -> str:
            total = Traces.of(self._result())
            total.add(removed)
            under_way = self._under_way | self._removal.in_flight(removed)
            order = replace(self._order, start=keys[-1] + 1)
            texts.append(self._text(total, under_way, order))
            return texts[-1]

        def done(removed: Traces) -> None:
            self._total.add(removed)
            self.discarded.add(removed)
            self._under_way |= self._removal.in_flight(removed)
            self.stored = texts[-1]

        change = ReportChange(self.number, self.stored, after)
        await self._removal.remove(place, keys, change, now_ms=self._begun_ms, done=done)
        self._noted_s = self._clock.monotonic()

    async def _note(self) -> None:
        text = self._text(self._total, self._under_way, self._order)
        await self._erasures.note(self.number, before=self.stored, report=text)
        self.stored = text
        self._noted_s = self._clock.monotonic()

    async def _end(self) -> None:
        # A lease may have read an event before its erasure, and return it afterwards.
        await self._removal.leases_made()
        self._under_way |= self._removal.in_flight(self.discarded)
        text = msgspec.json.encode(self._result()).decode()
        change = ReportChange(self.number, self.stored, lambda _: text)
        # A clock may have been set back.
        now_ms = max(self._begun_ms, self._clock.now_ms())
        await self._removal.end(change, self._address, now_ms=now_ms)

    def _result(self) -> Erasure:
        return self._erasure(self._total, self._under_way)

    def _erasure(self, total: Traces, under_way: InFlight) -> Erasure:
        in_flight = list(dict.fromkeys((*self._before, *under_way.values())))
        return total.erasure(in_flight, wiped=False, remains="")

    def _text(self, total: Traces, under_way: InFlight, order: Order) -> str:
        return unfinished(self._erasure(total, under_way), order)


def _parts(place: PersonalDataPlace, found: Sequence[FoundRow]) -> Iterator[list[FoundRow]]:
    """Split rows into transactions of few rows and bytes, of one row at least."""
    part: list[FoundRow] = []
    size = 0
    for row in found:
        if part and (len(part) * place.weight >= STEP_ROWS or size + row[1] > STEP_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += row[1]
    if part:
        yield part
