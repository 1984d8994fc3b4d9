"""Decides from answers whether a connection is spent, whatever the sink (pure).

A failed-over server lives on and answers each command with an error, while new connections lead to
its successor: only a new connection helps, and nothing ends the old one.
"""

from collections.abc import Iterable

from relay.core.delivery import SinkResponse
from relay.core.errors import Misconfigured, Temporary

FUTILE_MAX = 2
"""Sends in a row without a confirm. A single one may be the fault of its events."""


class ConnectionHealth:
    """Judges one connection by the outcomes of its sends."""

    def __init__(self) -> None:
        self._futile = 0

    def is_spent(self, outcomes: Iterable[SinkResponse | Exception | None]) -> bool:
        """Record the outcomes of one send; return whether to replace the connection.

        An error that no event can have caused ("not here, not now") ends it, and so do
        `FUTILE_MAX` sends in a row that only failed because of their events.
        A refusal says nothing about the connection.
        """
        is_confirmed = has_failed = False
        for outcome in outcomes:
            if isinstance(outcome, SinkResponse):
                is_confirmed = True
            elif isinstance(outcome, Temporary | Misconfigured):
                if not outcome.about_event:
                    return True
                has_failed = True
        if is_confirmed:
            self._futile = 0
        elif has_failed:
            self._futile += 1
        return self._futile >= FUTILE_MAX
