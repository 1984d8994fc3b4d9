"""Carries ordered erasures on to their end, also those of a relay that has gone."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from relay.core.clock import Clock
from relay.core.errors import StoreUnavailable
from relay.store.erasures import ErasureRecord
from relay.store.personal_data import PersonalData
from relay.telemetry import log

WAIT_S = 10.0
"""Time that an operator's request waits for the end; the erasure goes on without it."""

POLL_S = 0.25
"""Interval of a look at an erasure that another relay carries on."""

SEARCH_S = 5.0
"""Interval of a search for erasures that another relay has left."""

RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Waits after failures in a row; the last one is repeated."""


class Eraser:
    """Of the relays that share a store, the one that has its turn does the work."""

    def __init__(
        self,
        personal_data: PersonalData,
        *,
        clock: Clock,
        has_turn: Callable[[], bool],
        forget: Callable[[str], None],
        refetch: Callable[[], None],
        progressed: Callable[[], None],
    ) -> None:
        """`forget` is called with an address of which something may be kept in memory.

        `refetch` makes every sink release the deliveries that it has not started to send.
        """
        self._personal_data = personal_data
        self._clock = clock
        self._has_turn = has_turn
        self._forget = forget
        self._refetch = refetch
        self._progressed = progressed
        self._wakeup = asyncio.Event()
        self._round = asyncio.Event()
        self._sampled = log.Sampled(clock)

    async def erase(self, email: str) -> ErasureRecord:
        """Order an erasure, and return it once it has ended, or as it is after `WAIT_S`.

        From its order on it is sure to end. Raises StoreError, and then nothing is ordered.
        """
        self._forget(email)
        # Taken before the order, so that the end of its round cannot be missed.
        this_round = self._round
        number = await self._personal_data.order(email, now_ms=self._clock.now_ms())
        self._wakeup.set()
        try:
            return await self._watch(number, this_round)
        finally:
            # Look-ups that had begun before the erasure was on record.
            self._forget(email)

    async def _watch(self, number: int, this_round: asyncio.Event) -> ErasureRecord:
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(None if self._has_turn() else POLL_S):
                            await this_round.wait()
                    this_round = self._round
                    record = await self._personal_data.erasure(number)
                    if record is not None and record.ended_ms is not None:
                        return record
        record = await self._personal_data.erasure(number)
        if record is None:
            raise StoreUnavailable(f"erasure {number} is not in the store any more")
        return record

    def wake(self) -> None:
        """Say that an erasure may have been ordered."""
        self._wakeup.set()

    async def run(self) -> None:
        """Carry the ordered erasures on until cancelled; raises StoreBroken."""
        failures = 0
        while True:
            self._wakeup.clear()
            wait_s: float = SEARCH_S
            try:
                while self._has_turn() and await self._advance():
                    failures = 0
            except StoreUnavailable as error:
                self._sampled.line("erasure.delayed", reason=str(error))
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()

    async def _advance(self) -> bool:
        has_worked = True
        try:
            has_worked = await self._personal_data.advance(
                goes_on=self._has_turn, progressed=self._progressed
            )
        finally:
            if has_worked:
                # Buffered deliveries may be erased, and others may have waited for them, even if
                # the erasure has not ended yet.
                self._refetch()
                self._progressed()
                self._round.set()
                self._round = asyncio.Event()
        return has_worked
