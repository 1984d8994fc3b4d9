"""Reconstructions whose original has not arrived, in memory, so that acceptance asks no query."""

import asyncio
from contextlib import suppress

from relay.core import reconstruction
from relay.core.clock import Clock
from relay.core.errors import StoreError
from relay.core.event import Event
from relay.store.postgres.connection import Connection
from relay.store.postgres.driver import Database
from relay.store.rows import RECONSTRUCTED

REFRESH_S = 1.0
"""Age at which the list is read on, because other members make reconstructions too.

They also say so, a few milliseconds after the commit; behind a pooler, each survey has it read.
Until then an original is accepted as any other event; the count of the audience finds the two.
"""

# They are committed in the order of their numbers.
_NEXT = f"""
SELECT seq, source, id FROM relay.events
WHERE reconstructed = {RECONSTRUCTED} AND seq > %s ORDER BY seq
"""


class Outstanding:
    """Finds the reconstruction of an original; one that is superseded already may be found too."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._open: set[tuple[str, str]] = set()
        self._last = 0
        self._read_s = clock.monotonic()
        self._reading: asyncio.Task[None] | None = None
        self._is_outdated = False

    def find(self, original: Event) -> str | None:
        """Return the id of an original's reconstruction, if it is known here."""
        if self._clock.monotonic() - self._read_s >= REFRESH_S:
            self.refresh()
        if not self._open or not original.kind.startswith(("lead.", "video.")):
            return None
        ids = reconstruction.ids(original.kind, original.document())
        return next((id_ for id_ in ids if (original.source, id_) in self._open), None)

    def refresh(self) -> None:
        """Read the list on, soon."""
        self._read_s = self._clock.monotonic()
        self._is_outdated = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._refresh())

    def add(self, source: str, id_: str) -> None:
        """Note a reconstruction that was made."""
        self._open.add((source, id_))

    def remove(self, source: str, id_: str) -> None:
        """Forget one that was superseded."""
        self._open.discard((source, id_))

    async def read(self) -> None:
        """Read the list from where the last read ended; raises StoreError."""
        await self._connection.read(self._read_on)

    async def close(self) -> None:
        if self._reading is not None:
            await asyncio.wait((self._reading,))

    async def _refresh(self) -> None:
        while self._is_outdated:
            self._is_outdated = False
            with suppress(StoreError):
                await self.read()

    def _read_on(self, db: Database) -> None:
        for seq, source, id_ in db.execute(_NEXT, (self._last,)).fetchall():
            self._open.add((source, id_))
            self._last = seq
