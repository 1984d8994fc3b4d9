"""The period that a reconciliation is about, and what may still be on its way."""

import msgspec

from relay.core.delivery_rules import GIVE_UP_S

GIVE_UP_MS = round(GIVE_UP_S * 1000)
"""The sender's own schedule, as documented."""

VIEW_MAX_MS = 24 * 3_600_000
"""A view whose end is not known is over after this time."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The time that is asked about; `horizon_ms` is its end, or the time before which all is sent.

    All that happened before the horizon has arrived or is lost.
    """

    since_ms: int
    horizon_ms: int
    is_quiet: bool
    """Whether the relay has been there for so long that no event from an absence can come now."""

    @classmethod
    def of(
        cls,
        *,
        since_ms: int,
        until_ms: int,
        now_ms: int,
        back_ms: int,
        give_up_ms: int = GIVE_UP_MS,
    ) -> "Period":
        """Cut off what the sender may still be trying to send now.

        `back_ms` is the end of the relay's last absence; an event that was first sent `give_up_ms`
        ago comes no more.
        """
        horizon_ms = min(until_ms, now_ms - give_up_ms)
        return cls(
            since_ms=since_ms,
            horizon_ms=max(since_ms, horizon_ms),
            is_quiet=back_ms + give_up_ms <= now_ms,
        )

    def has(self, ms: int) -> bool:
        return self.since_ms <= ms < self.horizon_ms
