"""Searches for a person's data place by place, and its removal in small transactions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, NamedTuple, Protocol, TypeVar

from relay.store.email_matcher import EmailMatcher
from relay.store.keyed_digests import PersonDigests
from relay.store.personal_data import Erasure, ErasureRecord, Records, UnderWay
from relay.store.personal_data_parts import PART_BYTES, PART_STEPS, Cursor, Record, part
from relay.store.personal_data_traces import Matches, Place, Traces

SCAN_ROWS = 500
"""Rows scanned per step, because other queries wait for the same reader."""

STEP_ROWS = 50
STEP_BYTES = 1 << 20
"""Limits per transaction, which others wait for."""

P = TypeVar("P", bound=Place)

InFlight = dict[tuple[int, str], UnderWay]
"""Deliveries that may still arrive, by event and sink."""


class Remains(NamedTuple):
    """Traces of removed data."""

    wiped: bool
    """Whether unused parts of the store's files are overwritten."""
    text: str
    """What still holds it, in words for the operator."""


class Steps(Protocol[P]):
    """An engine's queries and writes; all methods may raise StoreError."""

    @property
    def places(self) -> Sequence[P]:
        """Return the places in the order of their removal; complete."""
        ...

    def alone(self) -> AbstractAsyncContextManager[object]:
        """Keep the audience from being counted by day during an erasure."""
        ...

    async def last(self, place: P) -> int:
        """Return the greatest key of a place, -1 if there is none.

        The rows up to it are those that were stored or on their way there when it was called.
        """
        ...

    async def find(self, place: P, address: EmailMatcher, *, start: int, rows: int) -> Matches:
        """Search the next rows of a place, from a key on."""
        ...

    async def preview(self, place: P, keys: Sequence[int]) -> Traces:
        """Return the effects that the removal of the rows would have."""
        ...

    async def remove(
        self, place: P, keys: Sequence[int], *, now_ms: int, done: Callable[[Traces], None]
    ) -> None:
        """Remove the rows; call `done` with the effects once they are on disk."""
        ...

    def in_flight(self, traces: Traces) -> InFlight:
        """Return which of the discarded deliveries may still arrive."""
        ...

    async def leases_made(self) -> None:
        """Return once `in_flight` includes every earlier lease."""
        ...

    async def begin(self, person: bytes, *, now_ms: int) -> int:
        """Record the start of an erasure, by the person's digest; return its number."""
        ...

    async def end(self, number: int, address: EmailMatcher, report: Erasure, now_ms: int) -> None:
        """Remove the person's number, and record the end and the result of an erasure."""
        ...

    async def wipe(self) -> Remains:
        """Remove these traces as far as possible; after a while, it continues in the background."""
        ...

    def remains(self) -> Remains:
        """Return the traces before `wipe`."""
        ...

    async def newest(self, *, limit: int, person: bytes | None) -> Sequence[ErasureRecord]:
        """Return the newest erasures, of one person's digest or of all."""
        ...

    async def records(
        self, place: P, address: EmailMatcher, keys: Sequence[int]
    ) -> Sequence[Record]:
        """Read rows for an export."""
        ...


class StepwisePersonalData(Generic[P]):
    """Fulfils `store.personal_data.PersonalData`."""

    def __init__(self, steps: Steps[P], digests: PersonDigests) -> None:
        self._steps = steps
        self._digests = digests
        self._lock = asyncio.Lock()

    async def erase(self, email: str, *, now_ms: int) -> Erasure:
        address = self._address(email)
        async with self._lock, self._steps.alone():
            person = self._digests.digest(address.folded)
            number = await self._steps.begin(person, now_ms=now_ms)
            total, under_way = await self._erase(address, now_ms)
            # A lease may have read an event before its erasure, and return it afterwards.
            await self._steps.leases_made()
            in_flight = list((under_way | self._steps.in_flight(total)).values())
            wiped, text = self._steps.remains()
            report = total.erasure(in_flight, wiped=wiped, remains=text)
            await self._steps.end(number, address, report, now_ms)
        wiped, text = await self._steps.wipe()
        return total.erasure(in_flight, wiped=wiped, remains=text)

    async def _erase(self, address: EmailMatcher, now_ms: int) -> tuple[Traces, InFlight]:
        total = Traces()
        under_way: InFlight = {}

        def done(removed: Traces) -> None:
            total.add(removed)
            under_way.update(self._steps.in_flight(removed))

        async for place, matches in self._matches(address):
            if place.is_kept:
                total.add(await self._steps.preview(place, _keys(matches)))
                continue
            for keys in _removals(place, matches):
                await self._steps.remove(place, keys, now_ms=now_ms, done=done)
        return total, under_way

    async def count(self, email: str) -> Erasure:
        total = Traces()
        async for place, matches in self._matches(self._address(email)):
            total.add(await self._steps.preview(place, _keys(matches)))
        in_flight = list(self._steps.in_flight(total).values())
        return total.erasure(in_flight, wiped=False, remains="")

    async def erasures(self, *, limit: int, email: str | None = None) -> Sequence[ErasureRecord]:
        person = None if email is None else self._digests.digest(self._address(email).folded)
        return await self._steps.newest(limit=limit, person=person)

    async def records(self, email: str, *, after: str | None) -> Records:
        address, cursor = self._address(email), Cursor.parse(after)
        places = {place.name: place for place in self._steps.places}
        records: list[Record] = []
        size = 0
        for _ in range(PART_STEPS):
            place = places[cursor.name]
            matches = await self._steps.find(place, address, start=cursor.start, rows=SCAN_ROWS)
            if matches.rows:
                records += await self._steps.records(place, address, _keys(matches))
            cursor = cursor.following(matches.next)
            size += sum(bytes_ for _, bytes_ in matches.rows)
            if cursor.is_over or size > PART_BYTES:
                break
        return part(records, cursor)

    async def _matches(self, address: EmailMatcher) -> AsyncIterator[tuple[P, Matches]]:
        """Yield matches among the rows that existed at the start, place by place, in steps."""
        for place in self._steps.places:
            last = await self._steps.last(place)
            start: int | None = 0
            while start is not None and start <= last:
                matches = await self._steps.find(place, address, start=start, rows=SCAN_ROWS)
                start = matches.next
                if matches.rows:
                    yield place, matches

    def _address(self, email: str) -> EmailMatcher:
        return EmailMatcher(email, number=self._digests.number(email))


def _keys(matches: Matches) -> list[int]:
    return [key for key, _ in matches.rows]


def _removals(place: Place, matches: Matches) -> Iterator[list[int]]:
    """Split the keys into transactions of few rows and bytes, of one row at least."""
    keys: list[int] = []
    size = 0
    for key, bytes_ in matches.rows:
        if keys and (len(keys) * place.weight >= STEP_ROWS or size + bytes_ > STEP_BYTES):
            yield keys
            keys, size = [], 0
        keys.append(key)
        size += bytes_
    if keys:
        yield keys
