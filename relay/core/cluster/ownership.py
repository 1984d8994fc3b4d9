"""What surveys show of all sinks' ownership: which sinks this member should take, or hand over.

All members decide alike from the same survey, so two of them rarely try for one sink.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from relay.core.cluster.leases import OwnershipLeases
from relay.core.cluster.statements import Acquire, OwnershipRow, Surveyed
from relay.core.cluster.timing import UNCLAIMED_S, WITNESS_S

Members = Mapping[str, AbstractSet[str]]
"""Live members with the sinks that each is ready to dispatch."""

Holders = Mapping[str, str | None]
"""Sinks with their holders; None for a free one."""


class _Sighting(msgspec.Struct):
    """An ownership row, since it was first seen in its present version."""

    version: int
    since_s: float
    free_since_s: float | None = None
    """Since when this member could have taken it."""


class OwnershipPlanner:
    """Judges surveys for one member.

    A server that has just started, or was promoted, may have lost acquisitions and renewals in
    which members still trust. Nothing is taken from it until that trust has ended.
    """

    def __init__(self, member: str) -> None:
        self._member = member
        self._run: tuple[str, str] | None = None
        """History and start of the server in the last survey."""
        self._withheld_until_s = 0.0
        self._sightings: dict[str, _Sighting] = {}

    def observe(self, survey: Surveyed, now_s: float) -> None:
        """Record a survey; `now_s` is the time of its answer."""
        run = (survey.history, survey.start)
        if run != self._run:
            if survey.fresh or self._run is not None:
                self._withheld_until_s = now_s + WITNESS_S
            self._run = run
            self._sightings.clear()
        for row in survey.rows:
            sighting = self._sightings.get(row.sink)
            if sighting is None or sighting.version != row.version:
                sighting = self._sightings[row.sink] = _Sighting(row.version, now_s)
            if sighting.free_since_s is None and self._is_free(row, sighting, now_s):
                sighting.free_since_s = now_s

    def decide(
        self, survey: Surveyed, leases: OwnershipLeases, sinks: frozenset[str], now_s: float
    ) -> tuple[Acquire | None, str | None]:
        """Return the acquisition that should follow a survey, and the sink to hand over."""
        if now_s < self._withheld_until_s:
            return None, None
        members = {**survey.members, self._member: sinks}
        holders = {row.sink: self._holder(row, leases) for row in survey.rows}
        chosen = designate(members, holders)
        claims = tuple(
            (row.sink, row.version)
            for row in survey.rows
            if row.sink in sinks
            and row.sink not in leases
            and self._claims(row, chosen.get(row.sink), now_s)
        )
        acquire = None
        if claims:
            acquire = Acquire(self._member, survey.history, survey.start, claims)
        if not leases.all_held():
            return acquire, None
        match handover(members, {**holders, **chosen}):
            case (sink, self._member) if leases.is_held(sink):
                return acquire, sink
            case _:
                return acquire, None

    def _holder(self, row: OwnershipRow, leases: OwnershipLeases) -> str | None:
        if row.sink in leases:
            return self._member
        if row.holder == self._member:
            # A lost answer: acquired or not released. This member takes it again.
            return self._member
        return None if row.expired else row.holder

    def _is_free(self, row: OwnershipRow, sighting: _Sighting, now_s: float) -> bool:
        if row.holder is None or row.holder == self._member:
            return True
        return row.expired and now_s - sighting.since_s >= WITNESS_S

    def _claims(self, row: OwnershipRow, chosen: str | None, now_s: float) -> bool:
        free_since_s = self._sightings[row.sink].free_since_s
        if free_since_s is None:
            return False
        mine = self._member in (chosen, row.holder)
        return mine or now_s - free_since_s >= UNCLAIMED_S


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
