"""Protocol and record of the states that sinks were in over the last days."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import msgspec

from relay.core.minutes import DAY_MS
from relay.core.sink_status import State

KEPT_MS = 8 * DAY_MS


class Span(msgspec.Struct, frozen=True):
    """A time in one state, in milliseconds since the epoch."""

    state: State | None
    """None where it is unknown: the relay was not running, or the sink was not configured."""
    from_ms: int
    to_ms: int | None
    """None for the current one."""


class LeftState(msgspec.Struct, frozen=True):
    """The state in which a sink was left by the relay that dispatched it last."""

    state: State
    since_ms: int
    """Times in which it is unknown do not interrupt a state."""
    was_parked: bool
    """Whether its last sends had parked it, whatever became of it and the relay since."""


class Change(NamedTuple):
    """A state that a sink has come into."""

    state: State | None
    """None if it is unknown from now on."""
    since_ms: int | None = None
    """Its beginning, if that is not now."""


class SinkStates(Protocol):
    """States of all sinks; all methods may raise StoreError."""

    async def note(self, changes: Mapping[str, Change], *, now_ms: int) -> None:
        """Store the states that sinks are in; the same state again changes nothing.

        A state began when the change says, or now where that is before the last stored change.
        Later changes, from before the clock was set back, are replaced by their last state. Changes
        of over `KEPT_MS` ago are removed.
        """
        ...

    async def since(self, since_ms: int) -> Mapping[str, Sequence[Span]]:
        """Return the states by sink, oldest first, and clipped to begin at `since_ms`.

        The first span may begin later: before it, the state is unknown.
        """
        ...

    async def left(self, sinks: Collection[str]) -> Mapping[str, LeftState]:
        """Return the last known states of those of these sinks that have one.

        Dispatchers that begin wait for it, so it does not wait for operators' reads.
        """
        ...


def spans_since(
    since_ms: int, known: Iterable[Sequence[Any]], changes: Iterable[Sequence[Any]]
) -> dict[str, list[Span]]:
    """Make spans from the sinks' states at a time, and from the later changes.

    `known` has sink and state, `changes` have sink, time and state, in order.
    """
    of_sinks: dict[str, list[tuple[State | None, int]]] = {}
    for sink, state in known:
        of_sinks[sink] = [(state, since_ms)]
    for sink, at, state in changes:
        of_sink = of_sinks.setdefault(sink, [])
        # Equal neighbours remain where the clock was set back.
        if not of_sink or of_sink[-1][0] != state:
            of_sink.append((state, at))
    return {sink: list(_spans(of_sink)) for sink, of_sink in of_sinks.items()}


def _spans(changes: Sequence[tuple[State | None, int]]) -> Iterator[Span]:
    ends = [from_ms for _, from_ms in changes[1:]]
    for (state, from_ms), to_ms in zip_longest(changes, ends):
        yield Span(state, from_ms, to_ms)
