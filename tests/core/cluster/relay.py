"""One relay of the simulated cluster: the planner under test, and what drives it."""

from collections.abc import Callable, Collection, Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from relay.core.cluster.statements import Poll
from tests.core.cluster.acceptance import Outcome, Step
from tests.core.cluster.dispatcher import Dispatcher
from tests.core.cluster.network import Call
from tests.core.cluster.tables import Confirm, EventId, Insert

if TYPE_CHECKING:
    from tests.core.cluster.world import World

_SLACK_S = 1e-6
"""Timers run late rather than early."""


class Relay:
    """A process; `kill` and `pause` are signals to it."""

    def __init__(self, world: "World", name: str, sinks: Iterable[str]) -> None:
        random = world.random
        self.world = world
        self.name = name
        self.sinks = frozenset(sinks)
        self.unreachable = False
        self.is_dead = False
        self.is_paused = False
        self.is_leaving = False
        self.pauses = 0
        self.well_since = world.clock.now
        self.statements = 0
        self.dispatchers: dict[str, Dispatcher] = {}
        self._inbox: list[tuple[bool, Callable[..., None], tuple[Any, ...]]] = []
        self._clock_offset = random.uniform(0, 1000)
        self._clock_rate = 1 + random.uniform(-2e-4, 2e-4)
        self._timer_at = 0.0
        self._must_step = False
        """Whether the planner has heard something."""
        self.planner = world.planner_class(name, sinks, random=Random(random.random()))
        self.planner.listens(self.now(), is_listening=world.announces)
        self.post(self._step)

    def now(self) -> float:
        """Return this machine's time since its boot, suspensions included."""
        return self._clock_offset + self.world.clock.now * self._clock_rate

    # Signals

    def kill(self) -> None:
        self.is_dead = True
        for dispatcher in self.dispatchers.values():
            for send in dispatcher.sends.values():
                self.world.cancel(send)

    def pause(self) -> None:
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        """Run all that has become ready: an event loop takes what has arrived before timers."""
        self.is_paused = False
        self.well_since = self.world.clock.now
        inbox, self._inbox = self._inbox, []
        for _, action, arguments in sorted(inbox, key=lambda entry: entry[0]):
            self.post(action, *arguments)

    def leave(self) -> None:
        self.is_leaving = True
        self.post(self._leave)

    def post(self, action: Callable[..., None], *arguments: Any, is_timer: bool = False) -> None:
        if self.is_dead:
            return
        if self.is_paused:
            self._inbox.append((is_timer, action, arguments))
            return
        action(*arguments)
        if self._must_step:
            self._step()

    # What dispatchers need

    def may_send(self, dispatcher: Dispatcher) -> bool:
        return self.planner.may_send(dispatcher.sink, dispatcher.fence, self.now())

    def fenced(self, dispatcher: Dispatcher) -> None:
        self._must_step = True
        self.planner.fenced(dispatcher.sink, dispatcher.fence)

    def drained(self, dispatcher: Dispatcher) -> None:
        self._must_step = True
        if self.dispatchers.get(dispatcher.sink) is dispatcher:
            del self.dispatchers[dispatcher.sink]
        self.planner.drained(dispatcher.sink, dispatcher.fence)

    def call(
        self, statement: Any, answered: Callable[[Any, Any], None], lost: Callable[[Any], None]
    ) -> None:
        self.world.network.send(Call(self, statement, answered, lost))

    # Receiver

    def accept(self, event: EventId, acknowledge: Callable[[EventId], None]) -> None:
        """Accept an event, as often as it takes; the sender may have given up."""

        def take(statement: Insert | Confirm, outcome: Outcome) -> None:
            step: Step = "insert" if isinstance(statement, Insert) else "confirm"
            match self.world.acceptance[step, outcome]:
                case "insert":
                    self.call(Insert(self.name, event, sinks), take, lost)
                case "confirm":
                    self.call(Confirm(self.name, event), take, lost)
                case _:
                    acknowledge(event)
                    self.wake(sinks)
                    self.planner.announced(())
                    self.world.wake_others(self, sinks)

        def lost(statement: Insert | Confirm) -> None:
            if self.world.clock.now < give_up_at:
                self.world.clock.after(0.2, self.post, take, statement, "lost")

        sinks = self.world.sinks_of(event)
        give_up_at = self.world.clock.now + 4
        self.call(Insert(self.name, event, sinks), take, lost)

    def wake(self, sinks: Collection[str]) -> None:
        for sink in sorted(sinks):
            if sink in self.dispatchers:
                self.dispatchers[sink].read()

    def announced(self, sinks: Collection[str]) -> None:
        self.wake(self.planner.announced(sinks))

    # The planner's driver

    def _step(self) -> None:
        self._must_step = False
        now = self.now()
        for statement in self.planner.plan(now):
            if isinstance(statement, Poll) and not self.world.polls:
                continue
            self.statements += 1
            self.call(statement, self._answered, self._lost)
        self._reconcile()
        if self.planner.has_left:
            self.is_dead = True
        due_at = (self.planner.due_s() - self._clock_offset) / self._clock_rate + _SLACK_S
        due_at = max(due_at, self.world.clock.now + _SLACK_S)
        if due_at < self._timer_at or self._timer_at <= self.world.clock.now:
            self._timer_at = due_at
            if due_at < self.world.end_at:
                self.world.clock.at(due_at, self._on_timer, due_at)

    def _on_timer(self, at: float) -> None:
        if at == self._timer_at:
            self.post(self._timed, is_timer=True)

    def _timed(self) -> None:
        self._must_step = True

    def _leave(self) -> None:
        self._must_step = True
        self.planner.leave()

    def _answered(self, statement: Any, answer: Any) -> None:
        self._must_step = True
        self.wake(self.planner.answered(statement, answer, self.now()))

    def _lost(self, statement: Any) -> None:
        self._must_step = True
        self.planner.lost(statement, self.now())

    def _reconcile(self) -> None:
        for lease in tuple(self.planner.leases):
            dispatcher = self.dispatchers.get(lease.sink)
            if dispatcher is not None and dispatcher.fence == lease.fence:
                if lease.state == "lost":
                    dispatcher.cancel()
                elif lease.state == "draining" and not dispatcher.is_draining:
                    dispatcher.drain()
            elif lease.state == "held":
                self.dispatchers[lease.sink] = Dispatcher(self, lease.sink, lease.fence)
            elif not lease.drained:
                self.planner.drained(lease.sink, lease.fence)
