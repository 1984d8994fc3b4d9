"""Dead letters: deliveries that the relay has given up."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from relay.store.repository import Repository
from relay.store.selection import Selection

DISCARD_STEP_ROWS = 200
"""Dead letters discarded per transaction, so that acknowledgements are not delayed."""

GoesOn = Callable[[int], bool]
"""Called after each step with the number so far; the change ends at False."""


def always(_: int) -> bool:
    """Go on whatever the number."""
    return True


class DeadLetter(msgspec.Struct, frozen=True):
    """One delivery that the relay has given up."""

    seq: int
    source: str
    id: str
    kind: str
    received_ms: int
    sink: str
    attempts: int
    settled_ms: int | None
    reason: str | None
    reconstructed: bool = False
    """Made from the sender's API, because the original was lost in an outage."""


class Reason(msgspec.Struct, frozen=True):
    """A sink's dead letters with one reason."""

    sink: str
    reason: str | None
    count: int
    first_ms: int | None
    """When the first of them died."""
    last_ms: int | None


Keys = Sequence[tuple[int, str]]
"""Deliveries, by event and sink."""


class DeadLetters(Repository, ABC):
    """All dead letters; all methods may raise StoreError."""

    @abstractmethod
    async def newest(self, selection: Selection, *, limit: int) -> Sequence[DeadLetter]:
        """Return the newest dead letters, above the limit if the last event has several."""

    @abstractmethod
    async def reasons(self, selection: Selection) -> Sequence[Reason]:
        """Count the selected dead letters by sink and reason, highest count first."""

    async def discard(self, selection: Selection, *, now_ms: int, goes_on: GoesOn = always) -> int:
        """Discard the selected dead letters in steps; return their number.

        If it raises, some may be discarded already.
        """
        count, up_to = 0, await self._last_event()
        while keys := await self._keys(selection, up_to=up_to, limit=DISCARD_STEP_ROWS):
            count += await self._discard(keys, now_ms)
            up_to, _ = keys[-1]
            if not goes_on(count):
                break
        return count

    @abstractmethod
    async def _last_event(self) -> int:
        """Return the number of the last event that can be seen."""

    @abstractmethod
    async def _keys(self, selection: Selection, *, up_to: int, limit: int) -> Keys:
        """Return the newest selected dead letters, up to an event."""

    @abstractmethod
    async def _discard(self, keys: Keys, now_ms: int) -> int:
        """Discard dead letters in one transaction; return their number."""

    @abstractmethod
    async def give_up(self, seq: int, sink: str, *, now_ms: int) -> bool:
        """Discard a pending delivery; False if there is none."""
