"""Leases of new deliveries that go straight to their dispatchers, without a read.

A read costs several statements on another thread. A dispatcher takes a delivery only while nothing
older is due in the store, so that order and bounds are those of a fetch. PostgreSQL offers none,
because another relay may own the sink.
"""

from collections.abc import Mapping, Sequence

from relay.core.delivery import Delivery
from relay.core.event import Event
from relay.core.routing import Verdict
from relay.store import Offer


def hand_over(
    leased: Mapping[str, set[int]],
    seq: int,
    event: Event,
    verdicts: Sequence[Verdict],
    offer: Offer,
) -> None:
    """Lease and offer the deliveries of an event that is on disk, except those with a key.

    `leased` are the numbers of leased events by sink; a lease may have found this one already.
    """
    for verdict in verdicts:
        held = leased[verdict.sink]
        if verdict.outcome != "takes" or verdict.key is not None or seq in held:
            continue
        held.add(seq)
        delivery = Delivery(
            seq=seq, sink=verdict.sink, event=event, attempts=0, first_attempt_ms=None
        )
        if not offer(delivery):
            held.discard(seq)
