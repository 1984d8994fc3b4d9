"""How long a sink has stood still: deliveries are due, none begins, and no reason explains it.

Times are seconds of a monotonic clock, passed in.
"""

import msgspec

from relay.core.sink_status import STANDSTILL_MS, WaitReason

BRIEF: frozenset[WaitReason] = frozenset({"fetch", "credit", "owner"})
"""Reasons that explain `BRIEF_S`; the others explain a wait for as long as they last."""

BRIEF_S = 10.0

GAP_S = 10.0
"""Longest time between two looks that counts."""

REBUILD_S = STANDSTILL_MS / 1000
"""Time after which the dispatcher is built anew."""


class Standstill(msgspec.Struct):
    """The standstill of one sink, as regular looks at the store show it."""

    looked_s: float
    """Time of the last look, or from which on to look."""
    since_s: float | None = None
    """Start of the time for which deliveries have been due and none has begun."""
    seconds: float = 0.0
    """Duration of the standstill at the last look; 0 where there is none."""
    is_rebuilt: bool = False
    """Whether its dispatcher was built anew in this standstill."""

    def observe(
        self, *, due_s: float | None, last_start_s: float, reason: WaitReason | None, now_s: float
    ) -> None:
        """Take a look into account.

        `due_s` is the time since which a delivery is due, None if none is, or the sink is not
        active. `last_start_s` is the time of the last start of a send.
        """
        # A longer gap was not observed: the store was away, or the process stood still.
        before_s = max(self.looked_s, now_s - GAP_S)
        unseen_s, self.looked_s = before_s - self.looked_s, now_s
        if due_s is None or (reason is not None and reason not in BRIEF):
            self.end()
            return
        if self.since_s is None or last_start_s > self.since_s:
            self.end()
            # The last look has explained the time before it.
            self.since_s = max(due_s, last_start_s, before_s)
        else:
            self.since_s += unseen_s
        self.seconds = max(0.0, now_s - self.since_s - (0.0 if reason is None else BRIEF_S))

    def end(self) -> None:
        """Record that the sink does not stand still."""
        self.since_s, self.seconds, self.is_rebuilt = None, 0.0, False

    def needs_rebuild(self) -> bool:
        """Whether to build the dispatcher anew: once in each standstill."""
        return self.seconds >= REBUILD_S and not self.is_rebuilt
