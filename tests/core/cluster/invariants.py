"""What must hold in every run; a violation ends it."""

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from relay.core.cluster.ownership import handover
from relay.core.cluster.statements import Fence
from relay.core.cluster.timing import LEASE_S, TAKEOVER_S
from tests.core.cluster.dispatcher import Send
from tests.core.cluster.relay import Relay
from tests.core.cluster.tables import EventId, Settle
from tests.seeds import Violation

if TYPE_CHECKING:
    from tests.core.cluster.world import World

IDLE_STATEMENTS_PER_S = 3.5
"""Of the planner; a whole relay may ask for fewer than five."""

_SETTLED_IN_S = 4.0
"""A member that has been well for this long takes part in takeovers."""


class Invariants:
    """Sees what the members do and what the database commits."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._in_progress: dict[str, list[Send]] = defaultdict(list)
        self._acquired: dict[tuple[str, str, Fence], int] = {}
        """The place of each acquisition among all."""
        self._last_acquired_at: dict[str, float] = {}
        self._begun: dict[str, int] = {}
        """The latest acquisition under which a send of the sink began."""
        self.received: dict[str, set[EventId]] = defaultdict(set)
        self.acknowledged: set[EventId] = set()
        self.takeovers = 0

    # One owner

    def acquired(self, member: str, sink: str, fence: Fence) -> None:
        for other in self._world.relays:
            if other.name != member and self._trusts(other, sink):
                raise Violation(f"{member} acquires {sink}, which {other.name} still trusts")
        self._acquired[member, sink, fence] = len(self._acquired)
        self._last_acquired_at[sink] = self._world.clock.now

    def begun(self, send: Send) -> None:
        dispatcher = send.dispatcher
        relay, sink, key = dispatcher.relay, dispatcher.sink, send.event[0]
        for other in self._world.relays:
            if other is not relay and self._trusts(other, sink):
                raise Violation(f"{relay.name} sends to {sink}, which {other.name} still trusts")
        place = self._acquired[relay.name, sink, dispatcher.fence]
        if place < self._begun.get(sink, -1):
            raise Violation(f"{relay.name} sends to {sink} after another has taken over")
        self._begun[sink] = place
        sends = self._in_progress[sink]
        for earlier in sends:
            if earlier.pauses != earlier.dispatcher.relay.pauses:
                continue  # begun before a pause
            if earlier.dispatcher.relay is not relay:
                raise Violation(f"{sink}: a send of the previous owner goes on")
            if sink in self._world.ordered and earlier.event[0] == key:
                raise Violation(f"{sink}: two sends of key {key} at once")
        sends.append(send)

    @staticmethod
    def _trusts(relay: Relay, sink: str) -> bool:
        leases = () if relay.is_dead else relay.planner.leases
        return any(relay.planner.may_send(sink, lease.fence, relay.now()) for lease in leases)

    def over(self, send: Send) -> None:
        self._in_progress[send.dispatcher.sink].remove(send)

    # Order and settlements

    def receipt(self, sink: str, event: EventId) -> None:
        key, number = event
        stored = self._world.database.tables.events
        if event in stored and event not in self.received[sink] and sink in self._world.ordered:
            for earlier in range(number):
                missed = (key, earlier) not in self.received[sink]
                # A failover that loses the unreplicated tail may lose an event, and a request that
                # was held up may bring it back, after later ones.
                if missed and stored.get((key, earlier), math.inf) < stored[event]:
                    raise Violation(f"{sink}: {event} came before {(key, earlier)}")
        self.received[sink].add(event)

    def settled(self, settle: Settle) -> None:
        guard = settle.guard
        row = self._world.database.tables.ownership[guard.sink]
        if (row.holder, row.fence) != (guard.member, guard.fence.number):
            raise Violation(f"{guard.member} settles for {guard.sink}, which {row.holder} holds")

    # Takeover

    def killed(self, relay: Relay) -> None:
        for sink, row in self._world.database.tables.ownership.items():
            if row.holder == relay.name:
                at = self._world.clock.now
                self._world.clock.after(TAKEOVER_S, self._check_takeover, sink, at)

    def _check_takeover(self, sink: str, killed_at: float) -> None:
        world = self._world
        if world.database_well_since > killed_at - LEASE_S:
            return
        ready = [
            relay
            for relay in world.relays
            if self._is_well(relay, killed_at - _SETTLED_IN_S) and sink in relay.sinks
        ]
        if not ready:
            return
        self.takeovers += 1
        if self._last_acquired_at[sink] <= killed_at:
            raise Violation(f"{sink} has no new owner {TAKEOVER_S} s after the kill")

    @staticmethod
    def _is_well(relay: Relay, since: float) -> bool:
        stopped = relay.is_dead or relay.is_paused or relay.is_leaving or relay.unreachable
        return not stopped and relay.well_since <= since

    # The end of a run

    def unfinished(self) -> str | None:
        """Return what is still to happen, once all disturbances are over."""
        world, tables = self._world, self._world.database.tables
        for event in sorted(world.submitted - self.acknowledged):
            return f"{event} is not acknowledged"
        for sink, pending in tables.pending.items():
            if pending:
                return f"{sink} has pending deliveries"
        members = {relay.name: relay.sinks for relay in world.relays if not relay.is_dead}
        holders: dict[str, str | None] = {}
        for relay in world.relays:
            for lease in relay.planner.leases if not relay.is_dead else ():
                if relay.planner.may_send(lease.sink, lease.fence, relay.now()):
                    holders[lease.sink] = relay.name
        for sink in world.sinks:
            if sink not in holders:
                return f"{sink} has no owner"
        return "the sinks are out of balance" if handover(members, holders) else None

    def check_account(self) -> None:
        """Check that each acknowledged event has reached all of its sinks."""
        world = self._world
        for event in sorted(self.acknowledged):
            is_kept = event in world.database.tables.events
            if not is_kept and world.database.synchronous:
                raise Violation(f"{event} was acknowledged and lost")
            for sink in world.sinks_of(event):
                if is_kept and event not in self.received[sink]:
                    raise Violation(f"{event} was acknowledged and has not reached {sink}")

    def check_idle_cost(self, statements: int, seconds: float, members: int) -> None:
        rate = statements / seconds / members if members else math.inf
        if rate >= IDLE_STATEMENTS_PER_S:
            raise Violation(f"{rate:.1f} statements a second per member while idle")
