"""Whether the relay can accept events right now; sinks do not count."""

import asyncio
import math
from collections.abc import Callable

import msgspec

from relay.core.acceptance import AcceptanceHealth
from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreError, StoreFull
from relay.store import Store

PROBE_TIMEOUT_S = 2.0
"""Well below the timeout that an operator would give a health check."""

PROBE_EVERY_S = 1.0
"""Shortest interval of probes, and the time for which a success proves that events are accepted."""

SIZE_MIN = 1024
"""Least size of a probe's body, as of a usual event; a full disk may still take smaller rows."""


class Readiness(msgspec.Struct, eq=False):
    """Says what the last acceptances met, and otherwise what a probe meets, which callers share."""

    store: Store
    clock: Clock
    health: AcceptanceHealth
    draining: Callable[[], bool]
    timeout_s: float = PROBE_TIMEOUT_S
    _probing: asyncio.Task[None] | None = None
    _probed_s: float = -math.inf

    async def problems(self) -> list[str]:
        """Return the reasons why the relay cannot accept events; none if it is ready."""
        if self.draining():
            return ["the relay is stopping"]
        if self.health.is_proven(PROBE_EVERY_S):
            return []
        # The probe is not cancelled: later callers wait for the same one.
        probing = self._probe()
        done, _ = await asyncio.wait((probing,), timeout=self.timeout_s)
        if not done:
            return [f"the store has not committed within {self.timeout_s:g} s"]
        probing.result()
        failure = self.health.failure
        return [] if failure is None else [_problem(failure)]

    async def refusal(self) -> StoreError | None:
        """Return why the store refuses events; None unless it refused one since one was stored."""
        if self.health.failure is not None:
            await self.problems()
        return self.health.failure

    @property
    def since_ms(self) -> int | None:
        """Since when events are refused; None while none is, or the store does not answer."""
        return self.health.failed_since_ms

    def _probe(self) -> asyncio.Task[None]:
        """Return the last probe, or a new one if it is over and its time has come."""
        now_s = self.clock.monotonic()
        if self._probing is None or (
            self._probing.done() and now_s - self._probed_s >= PROBE_EVERY_S
        ):
            self._probed_s = now_s
            self._probing = asyncio.create_task(self._run())
        return self._probing

    async def _run(self) -> None:
        try:
            await self.store.probe(size=max(SIZE_MIN, self.health.failed_bytes))
        except StoreError as error:
            self.health.fail(error)
        else:
            self.health.succeed()


def _problem(failure: StoreError) -> str:
    match failure:
        case StoreFull():
            return "the store is short of free space"
        case StoreBroken():
            return "the disk of the store failed; restart the relay"
        case _:
            return "the store accepts no events"
