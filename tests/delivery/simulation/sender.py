"""The sender: events that never pause, some with an ordering key, each acknowledged or given up."""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from relay.core.delivery import Delivery
from relay.core.errors import StoreError
from relay.core.event import LEAD_CAPTURED, Event
from relay.core.routing import Verdict
from relay.store.postgres.leases import COST_FACTOR
from tests.delivery.simulation.destination import poisonous
from tests.delivery.simulation.member import Member

if TYPE_CHECKING:
    from tests.delivery.simulation.world import World

_BODY = b'{"event":"lead.captured"}'
_KEYS = [f"k{number}" for number in range(6)]
"""Ordering keys of each ordered sink."""

_LATE_SHARE, _LATEST_S = 0.02, 3.0
"""Commits that take long, and how long: a transaction may wait for a standby."""

_FOUND_S = COST_FACTOR * 10 * 0.02
"""Time within which a walk over the whole tier finds a commit that others have gone past.

It follows the last such walk, here of ten reads of 20 ms, after `COST_FACTOR` times its duration.
"""


class Load(NamedTuple):
    """When events come."""

    gap_s: float
    """Mean time between bursts."""
    burst: int
    """Events that come together."""
    seconds: float


class Sender:
    """Submits events to any relay.

    The next event of a key follows once the one before it is acknowledged: between events that are
    under way at once, no order is promised.
    """

    def __init__(self, world: "World", load: Load) -> None:
        self._world = world
        self._load = load
        self._number = 0
        self._keys: dict[tuple[str, str], str] = {}
        """Of events to ordered sinks."""
        self._free: defaultdict[str, list[str]] = defaultdict(_KEYS.copy)
        self._last: dict[tuple[str, str], str] = {}
        """The last event of each sink and key."""
        self._before: dict[tuple[str, str], str] = {}
        self.acknowledged: dict[str, list[str]] = {}
        """The events that a relay has acknowledged, with their sinks."""
        self.found_by_s: dict[str, float] = {}
        """Events whose commit took so long that others may have been sent past them."""
        self._tasks: set[asyncio.Task[None]] = set()

    def key(self, sink: str, event: str) -> str | None:
        return self._keys.get((sink, event))

    def is_ordered(self, sink: str) -> bool:
        """Whether it has had an event with a key."""
        return any(name == sink for name, _ in self._keys)

    def before(self, sink: str, event: str) -> str | None:
        """Return the event before this one of its key."""
        return self._before.get((sink, event))

    async def run(self, until_s: float) -> None:
        """Submit until then, and wait for the last answers."""
        while self._world.now_s < until_s:
            for _ in range(self._load.burst):
                self._submit()
            await asyncio.sleep(self._load.gap_s * self._world.random.uniform(0.5, 1.5))
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _submit(self) -> None:
        world = self._world
        member = world.any_member()
        sinks = [name for name, share in world.shares.items() if world.random.random() < share]
        if member is None or not sinks:
            return
        event_id = self._next_id()
        if world.poisonous_share and world.random.random() < world.poisonous_share:
            event_id = poisonous(event_id)
        verdicts = [verdict for sink in sinks if (verdict := self._verdict(event_id, sink))]
        self._begin(event_id, verdicts, member)

    def submit_good(self, sink: str) -> None:
        """Submit a good event to one sink, with no other of its key before it."""
        if (member := self._world.any_member()) is not None:
            event_id = self._next_id()
            key = None if self._world.destinations[sink].settings.ordered is None else event_id
            if key is not None:
                self._keys[sink, event_id] = key
            self._begin(event_id, [Verdict(sink, "takes", "", key=key)], member)

    def _next_id(self) -> str:
        self._number += 1
        return f"e{self._number}"

    def _begin(self, event_id: str, verdicts: list[Verdict], member: Member) -> None:
        task = asyncio.get_running_loop().create_task(self._store(event_id, verdicts, member))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store(self, event_id: str, verdicts: list[Verdict], member: Member) -> None:
        world, taken = self._world, set[str]()
        event = Event(
            source="main",
            id=event_id,
            kind=LEAD_CAPTURED,
            created_at=None,
            received_ms=member.clock.now_ms(),
            body=_BODY,
        )

        def offer(delivery: Delivery) -> bool:
            is_taken = member.supervisor.offer(delivery)
            if is_taken:
                taken.add(delivery.sink)
            return is_taken

        def stored() -> None:
            for verdict in verdicts:
                if verdict.sink not in taken:
                    world.announce(verdict.sink, by=member)

        late = world.random.random() < _LATE_SHARE
        commit_s = world.random.uniform(0, _LATEST_S) if late else world.random.uniform(0, 0.03)
        # A walk under way may have passed even one that is less late than `LAG_MS`.
        if late:
            self.found_by_s[event_id] = world.now_s + commit_s + _FOUND_S
        try:
            await world.engine.accept(
                member.store, event, verdicts, offer, stored, commit_s=commit_s
            )
        except StoreError as error:
            # It may be stored or not; its keys are not used again, as nothing follows it.
            world.log(f"{event_id} is not acknowledged: {error}")
            return
        self.acknowledged[event_id] = [verdict.sink for verdict in verdicts]
        for verdict in verdicts:
            if verdict.key is not None:
                self._free[verdict.sink].append(verdict.key)

    def _verdict(self, event_id: str, sink: str) -> Verdict | None:
        """Give the event a free key of an ordered sink; None if there is none."""
        settings = self._world.destinations[sink].settings
        if settings.ordered is None:
            return Verdict(sink, "takes", "")
        if not (free := self._free[sink]):
            return None
        key = free.pop(self._world.random.randrange(len(free)))
        if (before := self._last.get((sink, key))) is not None:
            self._before[sink, event_id] = before
        self._keys[sink, event_id] = key
        self._last[sink, key] = event_id
        return Verdict(sink, "takes", "", key=key)
