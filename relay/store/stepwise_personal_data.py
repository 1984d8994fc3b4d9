"""Searches for a person's data place by place, and its removal in small transactions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from relay.core.clock import Clock
from relay.store.email_matcher import EmailMatcher
from relay.store.keyed_digests import PersonDigests
from relay.store.personal_data import Erasure, ErasureRecord, Records, always, nothing
from relay.store.personal_data_parts import PART_BYTES, PART_STEPS, Cursor, Record, part
from relay.store.personal_data_traces import Matches, Place, Traces
from relay.store.stepwise_erasure import (
    SCAN_ROWS,
    ErasureRun,
    ErasureSteps,
    Order,
    Remains,
    Stored,
    unfinished,
)

P = TypeVar("P", bound=Place)


class Steps(ErasureSteps[P], Protocol[P]):
    """An engine's queries and writes; all methods may raise StoreError."""

    @property
    def places(self) -> Sequence[P]:
        """Return the places in the order of their removal; complete."""
        ...

    def alone(self) -> AbstractAsyncContextManager[object]:
        """Keep the audience from being counted by day during an erasure."""
        ...

    async def begin(self, person: bytes, report: str, *, now_ms: int) -> int:
        """Record the start of an erasure, by the person's digest, unless one runs.

        Return its number.
        """
        ...

    async def unfinished(self) -> Stored | None:
        """Return the oldest erasure that can go on."""
        ...

    async def wipe(self) -> Remains:
        """Remove these traces as far as possible; after a while, it continues in the background."""
        ...

    async def erasure(self, number: int) -> ErasureRecord | None:
        """Return one erasure."""
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

    def __init__(self, steps: Steps[P], digests: PersonDigests, clock: Clock) -> None:
        self._steps = steps
        self._digests = digests
        self._clock = clock
        self._lock = asyncio.Lock()
        self._run: ErasureRun[P] | None = None
        """The last run, which may not have ended."""

    async def order(self, email: str, *, now_ms: int) -> int:
        person = self._digests.digest(self._address(email).folded)
        empty = Traces().erasure((), wiped=False, remains="")
        return await self._steps.begin(person, unfinished(empty, Order(email)), now_ms=now_ms)

    async def advance(
        self, *, goes_on: Callable[[], bool] = always, progressed: Callable[[], None] = nothing
    ) -> bool:
        if await self._steps.unfinished() is None:
            return False
        async with self._lock, self._steps.alone():
            stored = await self._steps.unfinished()
            if stored is None:
                return False
            if not await self._run_of(stored).carry_on(goes_on=goes_on, progressed=progressed):
                return False
            self._run = None
        await self._steps.wipe()
        return True

    def _run_of(self, stored: Stored) -> ErasureRun[P]:
        """Return the last run if it can go on, else a new one."""
        last = self._run
        if last is not None and (last.number, last.stored) == (stored.number, stored.report):
            return last
        steps = self._steps
        run = ErasureRun(steps, steps.places, stored, address=self._address, clock=self._clock)
        if last is not None and last.number == stored.number:
            run.discarded = last.discarded
        self._run = run
        return run

    async def erasure(self, number: int) -> ErasureRecord | None:
        return await self._steps.erasure(number)

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
            if cursor.end is None:
                cursor = cursor._replace(end=max(0, await self._steps.last(place)))
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
