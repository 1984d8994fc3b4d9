"""What must hold in every run, judged from outside: by the tables, and by what destinations see."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from relay.core.errors import SinkError
from tests.delivery.simulation.destination import Destination
from tests.delivery.simulation.member import Member
from tests.delivery.simulation.refusals import RefusalInvariants
from tests.seeds import Violation

if TYPE_CHECKING:
    from tests.delivery.simulation.world import World

STANDSTILL_S = 1.0
"""A healthy sink with due deliveries begins one within this time, and within it of a takeover.

The documents grant 3 s after a clean stop, which the old owner and the next one share.
"""

LOOK_EVERY_S = 0.05

STORE_BACK_S = 1.5
"""A relay that could not reach its store tries again within this time."""

CLOCK_SET_S = 2.5
"""All relays have learned within this time that the store's clock was set, and begun anew."""

Key = tuple[str, str]
"""A sink and an event, or a sink and an ordering key."""


class _InFlight(NamedTuple):
    member: Member
    batch: int


class Invariants:
    """Sees each send, and looks at all sinks every `LOOK_EVERY_S`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._in_flight: dict[Key, _InFlight] = {}
        self._batches = 0
        self._last_start_s: defaultdict[str, float] = defaultdict(float)
        self._confirmed: dict[Key, float] = {}
        self.refusals = RefusalInvariants(world)
        self._stands_since_s: dict[str, float] = {}
        self.longest_s = 0.0
        """The longest standstill."""

    # Sends

    def begun(self, destination: Destination, events: list[str], member: Member) -> None:
        """Note that a batch is on its way."""
        sink, now_s = destination.name, self._world.now_s
        self._batches += 1
        for event in events:
            self._require_single(sink, event)
            self._require_turn(sink, event)
            self._require_reason(sink, event)
            self.refusals.begun(sink, event)
            self._in_flight[sink, event] = _InFlight(member, self._batches)
        mine = sum(place[0] == sink and each.member is member for place, each in self._flights())
        if mine > destination.settings.slots():
            raise Violation(f"{sink} has {mine} sends at once")
        self._last_start_s[sink] = now_s
        self._stands_since_s.pop(sink, None)

    def over(self, destination: Destination, events: list[str]) -> None:
        """Note that a batch has ended, whatever came of it."""
        for event in events:
            self._in_flight.pop((destination.name, event), None)
            self.refusals.over(destination.name, event)

    def took(
        self, destination: Destination, events: Sequence[str], errors: Sequence[SinkError | None]
    ) -> None:
        """Note what the destination has answered to a batch."""
        for event, error in zip(events, errors, strict=True):
            if error is None:
                self._confirmed[destination.name, event] = self._world.now_s
        self.refusals.took(destination.name, events, errors)

    def _flights(self) -> Iterator[tuple[Key, _InFlight]]:
        return iter(self._in_flight.items())

    def _require_single(self, sink: str, event: str) -> None:
        if (sink, event) in self._in_flight:
            raise Violation(f"{event} is sent to {sink} twice at once")

    def _require_turn(self, sink: str, event: str) -> None:
        key = self._world.sender.key(sink, event)
        if key is None:
            return
        for (other_sink, other), _ in self._flights():
            if other_sink == sink and self._world.sender.key(sink, other) == key:
                raise Violation(f"{event} and {other}, of one key, are sent to {sink} at once")
        before = self._world.sender.before(sink, event)
        if before is not None and self._world.engine.is_pending(sink, before):
            raise Violation(f"{event} is sent to {sink} before {before}, which has its key")

    def _require_reason(self, sink: str, event: str) -> None:
        """A confirmed event is sent again only if its outcome may have been lost."""
        confirmed_s = self._confirmed.get((sink, event))
        if confirmed_s is not None and self._world.disturbed_s[sink] < confirmed_s:
            raise Violation(f"{event} is sent to {sink} again, which has confirmed it")

    # Progress

    def look(self) -> None:
        """Raise Violation for a sink that stands still, or whose good events wait for bad ones."""
        now_s = self._world.now_s
        for sink in self._world.destinations:
            reason = self._reason(sink)
            closed = self._startable(sink) if reason in ("throttled", "parked") else ()
            _require(self.refusals.look(sink, reason, closed))
            first = next(self._startable(sink), None) if reason is None else None
            if first is None:
                self._stands_since_s.pop(sink, None)
                continue
            stood_s = now_s - self._stands_since_s.setdefault(sink, now_s)
            self.longest_s = max(self.longest_s, stood_s)
            if stood_s > STANDSTILL_S:
                raise Violation(f"{sink} stands still for {stood_s:.1f} s; {first} is due")

    def _reason(self, sink: str) -> str | None:
        """Return why a sink with due deliveries begins none."""
        world, destination = self._world, self._world.destinations[sink]
        owner = world.owner(sink)
        if owner is None or sink in world.changing:
            return "owner"
        if world.now_s < owner.reaches_store_s:
            return "store"
        if world.now_s < world.clock_set_s + CLOCK_SET_S:
            return "clock"
        state = owner.state(sink)
        if state in ("throttled", "parked", "paused"):
            return state
        settings = destination.settings
        batches = {each.batch for (name, _), each in self._flights() if name == sink}
        if len(batches) >= settings.slots() // settings.batch():
            return "sends"
        rate = settings.rate
        if rate is not None and world.now_s < self._last_start_s[sink] + 1 / rate:
            return "rate"
        return None

    def _startable(self, sink: str) -> Iterator[str]:
        """Yield the events that could be sent now."""
        world = self._world
        keys = {world.sender.key(sink, event) for name, event in self._in_flight if name == sink}
        for event in world.engine.due(sink, world.store_ms()):
            if world.now_s < world.sender.found_by_s.get(event, 0):
                continue
            key = world.sender.key(sink, event)
            if (sink, event) not in self._in_flight and (key is None or key not in keys):
                yield event

    # The end

    def check_account(self) -> None:
        """Raise Violation unless every acknowledged event has reached its sinks."""
        _require(self.refusals.lost())
        dead = {
            (sink, event)
            for sink in self._world.destinations
            for event, _ in self._world.engine.dead(sink)
        }
        for event, sinks in self._world.sender.acknowledged.items():
            for sink in sinks:
                if (sink, event) not in self._confirmed and (sink, event) not in dead:
                    raise Violation(f"{event} was acknowledged, and never reached {sink}")


def _require(fault: str | None) -> None:
    if fault is not None:
        raise Violation(fault)
