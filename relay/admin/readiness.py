"""Whether the relay can accept events right now; sinks do not count."""

import asyncio
from collections.abc import Callable

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreError, StoreFull
from relay.store import Store

PROBE_TIMEOUT_S = 2.0
"""Well below the timeout that an operator would give a health check."""


class Readiness:
    """Probes the store with a commit, which concurrent requests share even while it hangs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        draining: Callable[[], bool],
        *,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self.draining = draining
        self._timeout_s = timeout_s
        self._probing: asyncio.Task[str | None] | None = None

    async def problems(self) -> list[str]:
        """Return the reasons why the relay cannot accept events; none if it is ready."""
        if self.draining():
            return ["the relay is stopping"]
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        # The probe is not cancelled: later requests wait for the same one, or begin the next.
        probing = self._probing
        done, _ = await asyncio.wait((probing,), timeout=self._timeout_s)
        if not done:
            return [f"the store has not committed within {self._timeout_s:g} s"]
        problem = probing.result()
        return [] if problem is None else [problem]

    async def _probe(self) -> str | None:
        try:
            await self._store.probe(now_ms=self._clock.now_ms())
        except StoreFull:
            return "the store is short of free space"
        except StoreBroken:
            return "the disk of the store failed; restart the relay"
        except StoreError:
            return "the store accepts no events"
        return None
