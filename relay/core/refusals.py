"""Tells refusals that are the destination's fault from those that are an event's own."""

import msgspec

from relay.core.errors import Refused, RefusesAll, SinkError
from relay.core.retry import FAILURE_THRESHOLD


class Refusals(msgspec.Struct, frozen=True):
    """Refusals that are the destination's fault."""

    reason: str | None
    """Of the events that became dead letters before; None where they have several, or the relay
    has started since."""


class RefusalStreak:
    """Refusals of distinct events in a row, with no success between them.

    The first ones are the events' own. From `FAILURE_THRESHOLD` on, all are the destination's,
    until its next success, and the circuit breaker parks the sink: so at most four events in a row
    become dead letters for nothing.
    """

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}
        """Of the events that were refused for their own fault."""
        self._is_destinations = False

    @property
    def refusals(self) -> Refusals | None:
        """None while a refusal is an event's own."""
        if not self._is_destinations:
            return None
        reasons = set(self._reasons.values())
        return Refusals(reasons.pop() if len(reasons) == 1 else None)

    def resume(self) -> None:
        """Take refusals for the destination's: it took nothing when the relay last knew of it."""
        self._is_destinations = True

    def end(self) -> None:
        """Begin anew after a success."""
        if self._is_destinations or self._reasons:
            self._reasons.clear()
            self._is_destinations = False

    def judge(self, error: SinkError | None, *, event: int, counts: bool) -> SinkError | None:
        """Return the error, or `RefusesAll` in place of a refusal that is the destination's.

        `counts` is False for an event whose refusal says nothing about the destination.
        """
        if not isinstance(error, Refused):
            return error
        if not self._is_destinations:
            if not counts or event in self._reasons:
                return error
            if len(self._reasons) + 1 < FAILURE_THRESHOLD:
                self._reasons[event] = error.reason
                return error
            self._is_destinations = True
        return RefusesAll(
            f"it refuses every event: {error.reason}",
            status=error.status,
            answer=error.answer,
            about_event=True,
        )
