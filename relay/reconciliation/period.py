"""The period that a reconciliation is about, and what may still be on its way."""

import msgspec

from relay.core.delivery_rules import GIVE_UP_S

GIVE_UP_MS = round(GIVE_UP_S * 1000)
"""The sender's own schedule, as documented."""

VIEW_MAX_MS = 24 * 3_600_000
"""A view whose end is not known is over after this time."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The period that a run asks about; it ends before anything that the sender may still retry.

    What happened before `horizon_ms` has arrived or is lost.
    """

    since_ms: int
    horizon_ms: int
    is_quiet: bool
    """Whether the sender has given up every event of the last absence."""
    give_up_ms: int = GIVE_UP_MS
    """How long the sender tries an event."""

    @classmethod
    def of(
        cls,
        *,
        since_ms: int,
        until_ms: int,
        now_ms: int,
        returned_ms: int,
        give_up_ms: int = GIVE_UP_MS,
    ) -> "Period":
        """Leave out the events that the sender may still retry.

        `returned_ms` is the end of the relay's last absence. The sender gives up `give_up_ms` after
        its first try.
        """
        horizon_ms = min(until_ms, now_ms - give_up_ms)
        return cls(
            since_ms=since_ms,
            horizon_ms=max(since_ms, horizon_ms),
            is_quiet=returned_ms + give_up_ms <= now_ms,
            give_up_ms=give_up_ms,
        )

    def has(self, ms: int) -> bool:
        return self.since_ms <= ms < self.horizon_ms
