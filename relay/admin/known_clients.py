"""Clients that had the right token lately: over restarts, and on every relay of a store."""

import asyncio
from contextlib import suppress

from relay.core.clock import Clock
from relay.core.errors import StoreError
from relay.core.minutes import DAY_MS
from relay.store.sessions import KNOWN_MAX, KNOWN_MS, KnownClient, Role, Sessions

EXCHANGE_EVERY_S = 60.0
"""Time within which a client is known on the other relays too."""

NOTED_EVERY_MS = DAY_MS
"""Time within which a client's right tokens are noted once."""


class KnownClients:
    """Holds the marks of known clients, and exchanges them with the store.

    Only a right token makes a client known, so that strangers displace none.
    """

    def __init__(self, sessions: Sessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._known: dict[bytes, KnownClient] = {}
        self._unsaved: dict[bytes, KnownClient] = {}
        self._noted = asyncio.Event()

    def mark(self, *parts: str) -> bytes:
        """Return the mark of a client: a digest that only this store's relays can make."""
        return self._sessions.fingerprint(" ".join(parts))

    def __contains__(self, mark: bytes) -> bool:
        known = self._known.get(mark)
        return known is not None and self._clock.now_ms() - known.right_ms < KNOWN_MS

    def note(self, mark: bytes, role: Role) -> None:
        """Know a client by this mark from now on."""
        now_ms, known = self._clock.now_ms(), self._known.get(mark)
        is_noted = known is not None and (
            now_ms - known.right_ms < NOTED_EVERY_MS and role in (known.role, "viewer")
        )
        # Full only while the store takes nothing.
        if not is_noted and len(self._unsaved) < KNOWN_MAX:
            self._known[mark] = self._unsaved[mark] = KnownClient(mark, role, now_ms)
            self._noted.set()

    async def exchange(self) -> None:
        """Store the noted clients, and read those of all relays; raises StoreError."""
        noted = list(self._unsaved.values())
        now_ms = self._clock.now_ms()
        if noted:
            await self._sessions.remember(noted, now_ms=now_ms)
        stored = {each.mark: each for each in await self._sessions.remembered(now_ms=now_ms)}
        for each in noted:
            if self._unsaved.get(each.mark) is each:
                del self._unsaved[each.mark]
        self._known = stored | self._unsaved

    async def run(self) -> None:
        """Store noted clients at once, and read those of other relays each minute."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(EXCHANGE_EVERY_S):
                    await self._noted.wait()
            self._noted.clear()
            # The next exchange stores the noted clients that this one has not.
            with suppress(StoreError):
                await self.exchange()
