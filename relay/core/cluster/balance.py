"""Which member should take a free sink, and which sink should move to a member with fewer.

All members decide alike from the same survey, so two of them rarely try for one sink.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

Members = Mapping[str, AbstractSet[str]]
"""Live members with the sinks that each is ready to dispatch."""

Holders = Mapping[str, str | None]
"""Sinks with their holders; None for a free one."""


def designate(members: Members, holders: Holders) -> dict[str, str]:
    """Choose a member for each free sink that has a taker: the one with the fewest sinks."""
    loads = _loads(members, holders)
    chosen: dict[str, str] = {}
    for sink in sorted(sink for sink, holder in holders.items() if holder is None):
        takers = [member for member, sinks in members.items() if sink in sinks]
        if takers:
            chosen[sink] = taker = min(takers, key=lambda member: (loads[member], member))
            loads[taker] += 1
    return chosen


def handover(members: Members, holders: Holders) -> tuple[str, str] | None:
    """Return the sink that should move next, and its holder; None while the sinks are in balance.

    One sink of the member with the most moves at a time, if another has at least two fewer.
    """
    loads = _loads(members, holders)
    if not loads or max(loads.values()) - min(loads.values()) < 2:
        return None
    for giver in sorted(members, key=lambda member: (-loads[member], member)):
        fewer = [member for member in members if loads[member] + 1 < loads[giver]]
        for sink in sorted((s for s, holder in holders.items() if holder == giver), reverse=True):
            if any(sink in members[member] for member in fewer):
                return sink, giver
    return None


def _loads(members: Members, holders: Holders) -> dict[str, int]:
    loads = dict.fromkeys(members, 0)
    for holder in holders.values():
        if holder is not None and holder in loads:
            loads[holder] += 1
    return loads
