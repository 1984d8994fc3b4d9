"""The leases of one member, and until when each may be trusted."""

import math
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from relay.core.cluster.statements import Fence
from relay.core.cluster.timing import TRUST_S

LeaseState = Literal["held", "draining", "lost"]


class OwnershipLease(msgspec.Struct):
    """One sink's lease: sends start while it is `held`; `draining` is still renewed, `lost` not."""

    sink: str
    fence: Fence
    deadline_s: float
    """End of trust, on this machine's clock."""
    state: LeaseState = "held"
    drained: bool = False
    """Whether its dispatcher has ended: nothing is in flight, all outcomes are settled."""


class OwnershipLeases:
    """Leases from their acquisition until their dispatchers have ended."""

    def __init__(self) -> None:
        self._leases: dict[str, OwnershipLease] = {}

    def __contains__(self, sink: str) -> bool:
        return sink in self._leases

    def __iter__(self) -> Iterator[OwnershipLease]:
        return iter(self._leases.values())

    def __len__(self) -> int:
        return len(self._leases)

    def may_send(self, sink: str, fence: Fence, now_s: float) -> bool:
        lease = self._find(sink, fence)
        return lease is not None and lease.state == "held" and now_s < lease.deadline_s

    def is_held(self, sink: str) -> bool:
        lease = self._leases.get(sink)
        return lease is not None and lease.state == "held"

    def all_held(self) -> bool:
        """Whether no lease is about to end."""
        return all(lease.state == "held" for lease in self)

    def acquired(self, sink: str, fence: Fence, *, sent_s: float) -> None:
        self._leases[sink] = OwnershipLease(sink, fence, sent_s + TRUST_S)

    def to_renew(self) -> tuple[tuple[str, Fence], ...]:
        return tuple((lease.sink, lease.fence) for lease in self if lease.state != "lost")

    def renewed(
        self,
        requested: Collection[tuple[str, Fence]],
        renewed: Collection[tuple[str, Fence]],
        *,
        sent_s: float,
    ) -> None:
        """Extend the renewed leases; the others of `requested` are lost."""
        for sink, fence in requested:
            lease = self._find(sink, fence)
            if lease is None or lease.state == "lost":
                continue
            if (sink, fence) in renewed:
                lease.deadline_s = sent_s + TRUST_S
            else:
                self._lose(lease)

    def drain(self, sink: str) -> None:
        """Start no further sends of a sink, before its handover."""
        lease = self._leases[sink]
        if lease.state == "held":
            lease.state = "draining"

    def drained(self, sink: str, fence: Fence) -> None:
        """Record that the lease's dispatcher has ended."""
        lease = self._find(sink, fence)
        if lease is not None:
            lease.drained = True
            if lease.state == "lost":
                del self._leases[sink]

    def lose(self, sink: str, fence: Fence) -> None:
        """Record that the database has refused this fence."""
        lease = self._find(sink, fence)
        if lease is not None:
            self._lose(lease)

    def expire(self, now_s: float) -> None:
        """Lose the leases whose trust has ended, whatever the database thinks of them."""
        for lease in tuple(self):
            if lease.state != "lost" and now_s >= lease.deadline_s:
                self._lose(lease)

    def next_deadline_s(self) -> float:
        return min((x.deadline_s for x in self if x.state != "lost"), default=math.inf)

    def to_release(self) -> OwnershipLease | None:
        """Return a lease whose dispatcher has ended for a handover."""
        return next((lease for lease in self if lease.state == "draining" and lease.drained), None)

    def released(self, lease: OwnershipLease) -> None:
        """Forget a lease, before its release is sent."""
        del self._leases[lease.sink]

    def _find(self, sink: str, fence: Fence) -> OwnershipLease | None:
        lease = self._leases.get(sink)
        return lease if lease is not None and lease.fence == fence else None

    def _lose(self, lease: OwnershipLease) -> None:
        lease.state = "lost"
        if lease.drained:
            del self._leases[lease.sink]
