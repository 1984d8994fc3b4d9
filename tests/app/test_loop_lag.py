"""The lag of the event loop, as its metric says it."""

import time

from tests.service import Relay

_BUCKET = "relay_loop_lag_seconds_bucket"


async def counted(relay: Relay, *, above: str = "") -> float:
    """How many moments were counted, or how many of them above a bound."""
    buckets = await relay.counts(_BUCKET)
    return buckets.get(("+Inf",), 0) - buckets.get((above,), 0)


async def test_each_moment_in_which_the_loop_stood_still_counts(relay: Relay) -> None:
    before, before_late = await counted(relay), await counted(relay, above="0.1")
    time.sleep(1.05)  # noqa: ASYNC251  the loop is to stand still
    while await counted(relay) < before + 10:
        pass
    # They are 0.1 s apart; the last of them is less than 0.1 s late.
    assert await counted(relay, above="0.1") >= before_late + 8
