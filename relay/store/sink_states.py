"""Protocol and record of the states that sinks were in over the last days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.core.minutes import DAY_MS
from relay.core.sink_status import State

KEPT_MS = 8 * DAY_MS


@dataclass(frozen=True, slots=True)
class Span:
    """A time in one state, in milliseconds since the epoch."""

    state: State | None
    """None where it is unknown: the relay was not running, or the sink was not configured."""
    from_ms: int
    to_ms: int | None
    """None for the current one."""


class SinkStates(Protocol):
    """States of all sinks; all methods may raise StoreError."""

    async def note(self, states: Mapping[str, State | None], *, now_ms: int) -> None:
        """Store the states that sinks are in from now on; the same state again changes nothing.

        Later changes, from before the clock was set back, are replaced by their last state. Changes
        of over `KEPT_MS` ago are removed.
        """
        ...

    async def since(self, since_ms: int) -> Mapping[str, Sequence[Span]]:
        """Return the states by sink, oldest first, and clipped to begin at `since_ms`.

        The first span may begin later: before it, the state is unknown.
        """
        ...
