"""One erasure in small transactions, each of which also stores how far it is.

Whoever carries it on reads that, and does the rest: after an error, a restart, or at another relay.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from relay.core.clock import Clock
from relay.store.email_matcher import EmailMatcher
from relay.store.personal_data import Erasure, ErasureRecord, UnderWay
from relay.store.personal_data_traces import Matches, Place, Traces

SCAN_ROWS = 500
"""Rows scanned in the first step of a place, because other queries wait for the same reader."""

SCAN_S = 0.05
"""Time that later steps aim at."""

SCAN_GROWTH = 8
"""Factor up to which they grow: small rows take less than the way to a database and back."""

STEP_ROWS = 50
STEP_BYTES = 1 << 20
"""Limits per transaction, which others wait for."""

NOTE_S = 1.0
"""Time after which a search that finds nothing stores how far it is."""

P_contra = TypeVar("P_contra", bound=Place, contravariant=True)

FoundRow = tuple[int, int]
"""Key and size of a row."""

InFlight = dict[tuple[int, str], UnderWay]
"""Deliveries that may still arrive, by event and sink."""


class Order(msgspec.Struct, frozen=True):
    """Whom an erasure is about, and where it goes on."""

    email: str
    places: Sequence[str] = ()
    """Names of all places, in the order in which they are searched."""
    place: int = 0
    """Position among these of the place to be searched next."""
    start: int = 0
    """First key to be searched there."""
    share: float = 0.0
    """How much of the store is searched."""


class Unfinished(Erasure, frozen=True, kw_only=True):
    """The result so far of an erasure that has not ended."""

    order: Order


class Stored(NamedTuple):
    """An erasure as it is in the store."""

    number: int
    begun_ms: int
    report: str | None
    """JSON of `Unfinished` until it ends; None where an older relay was interrupted."""


class Remains(NamedTuple):
    """Traces of removed data."""

    wiped: bool
    """Whether unused parts of the store's files are overwritten."""
    text: str
    """What still holds it, in words for the operator."""


class Change(NamedTuple):
    """How the report of an erasure changes with a transaction."""

    number: int
    before: str | None
    """The stored one. If it is another, someone else carries the erasure on."""
    after: Callable[[Traces], str]
    """Returns the new one, for what the transaction removes."""


class ErasureSteps(Protocol[P_contra]):
    """An engine's queries and writes of an erasure; all methods may raise StoreError."""

    async def last(self, place: P_contra) -> int:
        """Return the greatest key of a place, -1 if there is none.

        The rows up to it are those that were stored or on their way there when it was called.
        """
        ...

    async def find(
        self, place: P_contra, address: EmailMatcher, *, start: int, rows: int
    ) -> Matches:
        """Search the next rows of a place, from a key on."""
        ...

    async def preview(self, place: P_contra, keys: Sequence[int]) -> Traces:
        """Return the effects that the removal of the rows would have."""
        ...

    async def remove(
        self,
        place: P_contra,
        keys: Sequence[int],
        change: Change,
        *,
        now_ms: int,
        done: Callable[[Traces], None],
    ) -> None:
        """Remove the rows; call `done` with the effects once they are on disk."""
        ...

    async def note(self, change: Change) -> None:
        """Change the report, and nothing else."""
        ...

    def in_flight(self, traces: Traces) -> InFlight:
        """Return which of the discarded deliveries may still arrive; called on any thread."""
        ...

    async def leases_made(self) -> None:
        """Return once `in_flight` includes every earlier lease."""
        ...

    async def end(self, change: Change, address: EmailMatcher, *, now_ms: int) -> None:
        """Remove the person's number, and record the end and the result."""
        ...


class ErasureRun(Generic[P_contra]):
    """Carries one erasure on, from where it is in the store."""

    def __init__(
        self,
        steps: ErasureSteps[P_contra],
        places: Sequence[P_contra],
        stored: Stored,
        *,
        address: Callable[[str], EmailMatcher],
        clock: Clock,
    ) -> None:
        self._steps = steps
        self._places = places
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
        names = [place.name for place in self._places]
        if list(order.places) == names:
            return order
        for place in self._places:
            if place.is_kept:  # counted anew
                self._total.rows[place.name] = 0
        return replace(order, places=names, place=0, start=0)

    async def carry_on(
        self, *, goes_on: Callable[[], bool], progressed: Callable[[], None]
    ) -> bool:
        """Do the rest, and return True; False once `goes_on` is, between two steps.

        After that, or after an error, it can be called again.
        """
        sizes = [await self._steps.last(place) + 1 for place in self._places]
        for number in range(self._order.place, len(self._places)):
            place, start = self._places[number], self._order.start
            # Of the rows that exist now; what comes later belongs to another erasure.
            last = await self._steps.last(place)
            found: list[FoundRow] = []
            rows = SCAN_ROWS
            while start <= last:
                if not goes_on():
                    return False
                began_s = self._clock.monotonic()
                matches = await self._steps.find(place, self._address, start=start, rows=rows)
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
        self, place: P_contra, found: Sequence[FoundRow], *, is_last: bool
    ) -> list[FoundRow]:
        """Remove rows, as many at a time as a transaction takes; return those that do not fill one.

        The last ones need not fill one.
        """
        if place.is_kept:
            if found:
                self._total.add(await self._steps.preview(place, [key for key, _ in found]))
            return []
        parts = list(_parts(place, found))
        rest = [] if is_last or not parts else parts.pop()
        for part in parts:
            await self._remove_part(place, [key for key, _ in part])
        return rest

    async def _remove_part(self, place: P_contra, keys: Sequence[int]) -> None:
        texts: list[str] = []

        def after(removed: Traces) -> str:
            total = Traces.of(self._result())
            total.add(removed)
            under_way = self._under_way | self._steps.in_flight(removed)
            order = replace(self._order, start=keys[-1] + 1)
            texts.append(self._text(total, under_way, order))
            return texts[-1]

        def done(removed: Traces) -> None:
            self._total.add(removed)
            self.discarded.add(removed)
            self._under_way |= self._steps.in_flight(removed)
            self.stored = texts[-1]

        change = Change(self.number, self.stored, after)
        await self._steps.remove(place, keys, change, now_ms=self._begun_ms, done=done)
        self._noted_s = self._clock.monotonic()

    async def _note(self) -> None:
        text = self._text(self._total, self._under_way, self._order)
        await self._steps.note(Change(self.number, self.stored, lambda _: text))
        self.stored = text
        self._noted_s = self._clock.monotonic()

    async def _end(self) -> None:
        # A lease may have read an event before its erasure, and return it afterwards.
        await self._steps.leases_made()
        self._under_way |= self._steps.in_flight(self.discarded)
        text = msgspec.json.encode(self._result()).decode()
        change = Change(self.number, self.stored, lambda _: text)
        # A clock may have been set back.
        now_ms = max(self._begun_ms, self._clock.now_ms())
        await self._steps.end(change, self._address, now_ms=now_ms)

    def _result(self) -> Erasure:
        return self._erasure(self._total, self._under_way)

    def _erasure(self, total: Traces, under_way: InFlight) -> Erasure:
        in_flight = list(dict.fromkeys((*self._before, *under_way.values())))
        return total.erasure(in_flight, wiped=False, remains="")

    def _text(self, total: Traces, under_way: InFlight, order: Order) -> str:
        return unfinished(self._erasure(total, under_way), order)


def unfinished(result: Erasure, order: Order) -> str:
    """Return the report of an erasure that has not ended."""
    return msgspec.json.encode(Unfinished(**asdict(result), order=order)).decode()


def record_of(
    stored: Stored, ended_ms: int | None, person: bytes, remains: Remains
) -> ErasureRecord:
    """Return the record of an erasure, without the address."""
    report, share = stored.report, 1.0
    if report is None:
        return ErasureRecord(stored.number, stored.begun_ms, ended_ms, person.hex(), None, None)
    if ended_ms is None:
        share = msgspec.json.decode(report, type=Unfinished).order.share
        remains = Remains(wiped=False, text=_GOES_ON.format(share=math.floor(100 * share)))
    erasure = msgspec.json.decode(report, type=Erasure)
    erasure = replace(erasure, wiped=remains.wiped, remains=remains.text)
    return ErasureRecord(stored.number, stored.begun_ms, ended_ms, person.hex(), erasure, share)


_GOES_ON = (
    "The erasure is under way: {share} % of the store is searched. The relay goes on by itself, "
    "also after a restart; erase the same address again to see how far it is."
)


def _parts(place: Place, found: Sequence[FoundRow]) -> Iterator[list[FoundRow]]:
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
