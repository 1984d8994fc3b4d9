"""Reconstructions whose original has not arrived, so that acceptance rarely asks a query."""

import asyncio
import math

from relay.core import reconstruction
from relay.core.clock import Clock
from relay.core.event import Event
from relay.store.postgres.driver import Connection, Database
from relay.store.rows import RECONSTRUCTED

REFRESH_S = 1.0
"""Age at which the list is read on, because other members make reconstructions too."""

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
        self._read_s = -math.inf
        self._reading = asyncio.Lock()

    async def find(self, original: Event) -> str | None:
        """Return the id of an original's reconstruction; raises StoreError."""
        if not original.kind.startswith(("lead.", "video.")):
            return None
        if self._is_stale():
            async with self._reading:
                if self._is_stale():
                    now_s = self._clock.monotonic()
                    await self._connection.read(self._read_on)
                    self._read_s = now_s
        if not self._open:
            return None
        ids = reconstruction.ids(original.kind, original.document())
        return next((id_ for id_ in ids if (original.source, id_) in self._open), None)

    def add(self, source: str, id_: str) -> None:
        """Note a reconstruction that was made."""
        self._open.add((source, id_))

    def remove(self, source: str, id_: str) -> None:
        """Forget one that was superseded."""
        self._open.discard((source, id_))

    def _is_stale(self) -> bool:
        return self._clock.monotonic() - self._read_s >= REFRESH_S

    def _read_on(self, db: Database) -> None:
        for seq, source, id_ in db.execute(_NEXT, (self._last,)).fetchall():
            self._open.add((source, id_))
            self._last = seq
