"""What refused events may cost: a few that die for nothing, and no good event much time."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from relay.app.sink_history import COMPARE_EVERY_S
from relay.core.errors import Refused, SinkError
from relay.core.retry import FAILURE_THRESHOLD
from tests.delivery.simulation.destination import is_poisonous

if TYPE_CHECKING:
    from tests.delivery.simulation.world import World

LOST = FAILURE_THRESHOLD - 1
"""Events that die before their destination is blamed."""

SOON_S = 15.0
"""Rounds of probes pass any number of refused events within this time, as in `test_poison.py`."""

RECORDED_S = 0.5
"""A relay that reaches its store has recorded by then that a sink is parked, at a quiet time."""

_PARKINGS_MAX = 3
"""From so many sinks on that are parked within a round, the record of one may wait."""

Key = tuple[str, str]
"""A sink and an event."""


class _Streak(msgspec.Struct, eq=False):
    """The time between two successes of a sink."""

    allowed: int = LOST
    """Events that may die of all that are tried in it first."""
    dead: int = 0
    refused: int = 0


class RefusalInvariants:
    """Follows what each destination answers, in its order."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._streaks: defaultdict[str, _Streak] = defaultdict(_Streak)
        self._begun: dict[Key, _Streak] = {}
        """The streak in which each delivery was tried first."""
        self._tried: set[Key] = set()
        """Deliveries with an outcome, such as that there was no answer in time."""
        self._blamed: dict[Key, _Streak] = {}
        """The streak of a refused delivery, unless the sink took others since its first try.

        Such a refusal is the event's own fault for certain.
        """
        self._refused: set[Key] = set()
        self._parkings: list[float] = []
        """When sinks were parked for their refusals."""
        self._parked_s: dict[str, float] = {}
        """Since when a sink is seen parked by a relay that reaches its store."""
        self._owned_s: dict[str, float] = {}
        """When a sink was seen with an owner last."""
        self._starved_s: dict[str, float] = {}
        """Since when a good event that was never tried has waited for refused ones."""
        self.longest_s = 0.0
        """The longest such wait."""

    def begun(self, sink: str, event: str) -> None:
        """Note that an event is on its way."""
        self._begun.setdefault((sink, event), self._streaks[sink])

    def took(self, sink: str, events: Sequence[str], errors: Sequence[SinkError | None]) -> None:
        """Note the outcomes of a batch."""
        if None in errors:
            self._streaks[sink] = _Streak()
            self._starved_s.pop(sink, None)
        streak = self._streaks[sink]
        for event, error in zip(events, errors, strict=True):
            key = sink, event
            is_first = key not in self._tried
            if not isinstance(error, Refused):
                continue
            self._refused.add(key)
            streak.refused += 1
            if streak.refused == FAILURE_THRESHOLD:
                self._parkings.append(self._world.now_s)
            # Beside a success, it is the event's own fault, too.
            if (is_first or self._begun[key] is streak) and None not in errors:
                self._blamed[key] = streak
            else:
                self._blamed.pop(key, None)

    def over(self, sink: str, event: str) -> None:
        """Note that a send has ended, after its outcome if there was an answer."""
        self._tried.add((sink, event))

    def begins_anew(self, sink: str) -> None:
        """Note that another dispatcher takes the sink over, which knows what was recorded."""
        if sink in self._streaks and not self._is_recorded(sink):
            self._streaks[sink].allowed += LOST

    def _is_recorded(self, sink: str) -> bool:
        """Whether the last owner must have recorded that the sink is parked."""
        if (parked_s := self._parked_s.get(sink)) is None:
            return False
        owned_s = self._owned_s[sink]
        parkings = sum(owned_s - COMPARE_EVERY_S <= at_s for at_s in self._parkings)
        needs_s = RECORDED_S if parkings < _PARKINGS_MAX else COMPARE_EVERY_S + RECORDED_S
        return owned_s >= parked_s + needs_s

    def look(self, sink: str, reason: str | None, startable: Iterable[str]) -> str | None:
        """Note a sink's state; say what is wrong where a good event waits too long for bad ones.

        `startable` are the events that a closed sink could be sent now.
        """
        now_s = self._world.now_s
        self._note_state(sink, reason)
        is_well = self._world.destinations[sink].mode == "well"
        waiting = self._untried(sink, startable) if is_well else None
        if waiting is None:
            self._starved_s.pop(sink, None)
            return None
        waited_s = now_s - self._starved_s.setdefault(sink, now_s)
        self.longest_s = max(self.longest_s, waited_s)
        if waited_s <= SOON_S:
            return None
        return f"{waiting} has waited {waited_s:.1f} s at {sink} for refused ones"

    def _note_state(self, sink: str, reason: str | None) -> None:
        owner = self._world.owner(sink)
        if owner is None or reason in ("owner", "paused"):
            return
        self._owned_s[sink] = self._world.now_s
        if owner.state(sink) != "parked":
            self._parked_s.pop(sink, None)
        elif owner.line.is_cut or self._world.now_s < owner.reaches_store_s + COMPARE_EVERY_S:
            self._parked_s[sink] = self._world.now_s
        else:
            self._parked_s.setdefault(sink, self._world.now_s)

    def _untried(self, sink: str, startable: Iterable[str]) -> str | None:
        """Return a good event that could be sent now, and never was."""
        return next(
            (
                event
                for event in startable
                if not is_poisonous(event) and (sink, event) not in self._tried
            ),
            None,
        )

    def lost(self) -> str | None:
        """Say what is wrong where more died than may, or one that no destination has refused."""
        for sink in self._world.destinations:
            for event, is_replayed in self._world.engine.dead(sink):
                key = sink, event
                if key not in self._refused:
                    return f"{event} died, which {sink} never refused"
                streak = self._blamed.get(key)
                if streak is None or is_replayed:
                    continue
                streak.dead += 1
                if streak.dead > streak.allowed:
                    return f"{streak.dead} events in a row died at {sink}, {event} last"
        return None
