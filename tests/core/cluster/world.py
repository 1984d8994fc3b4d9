"""A cluster in virtual time: relays, their database, destinations, a sender, and disturbances."""

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from relay.core.cluster.planning import Planner
from relay.core.cluster.statements import Acquire, Acquired, Beat
from relay.core.cluster.timing import POLL_MIN_S
from tests.core.cluster import scenario
from tests.core.cluster.acceptance import NEXT, Outcome, Step, Verdict
from tests.core.cluster.database import Database
from tests.core.cluster.dispatcher import Send
from tests.core.cluster.invariants import Invariants
from tests.core.cluster.network import LATEST_S, Clock, Network
from tests.core.cluster.relay import Relay
from tests.core.cluster.tables import EventId, Settle
from tests.seeds import Violation

HEALED_IN_S = 60.0
"""All is delivered and in balance this long after the last disturbance."""

IDLE_FOR_S = 10.0

_HEARD = 0.8
"""Share of the announcements that arrive."""

SUBMIT_AGAIN_S = 5.0
"""The sender's timeout."""


class World:
    """One run; everything in it follows from the seed."""

    planner_class = Planner
    database_class = Database
    acceptance: Mapping[tuple[Step, Outcome], Step | Verdict] = NEXT

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self._trace = trace
        self.clock = Clock()
        self.network = Network(self.clock, random)
        self.polls = seed % 20 == 0
        """Whether polls run: they are most of the statements, and decide about no lease."""
        self.announces = seed % 40 == 0
        """Whether relays tell each other of new deliveries, which may get lost."""
        self.sinks = tuple(f"sink{number}" for number in range(random.choice((2, 3, 4))))
        self.ordered = frozenset(self.sinks[::2])
        self.database = self.database_class(
            self.clock, self.network, random, self.sinks, synchronous=random.random() < 0.6
        )
        self.relays: list[Relay] = []
        self._born = 0
        self.database_well_since = -math.inf
        self.end_at = 0.0
        self.submitted: set[EventId] = set()
        self.invariants = Invariants(self)
        self.database.on_commit = self._committed
        self.on_commit: Callable[[Relay, object], None] | None = None
        """A disturbance that waits for a renewal or an acquisition."""
        self._is_over = False
        self._send_s = random.choice((0.05, 0.3, 2.0))
        self._failures = random.choice((0.0, 0.1, 0.4))
        self._healed_at = 0.0

    def run(self) -> None:
        """Raise Violation if an invariant does not hold."""
        self._healed_at = scenario.plan(self)
        self.end_at = self._healed_at + HEALED_IN_S + IDLE_FOR_S
        for key in range(3):
            self.submitted.add((key, 0))
            self.clock.at(self.random.uniform(1, 4), self._submit, (key, 0))
        self.clock.at(self._healed_at, self._heal)
        self.clock.run(lambda: self._is_over)
        self.invariants.check_account()

    def log(self, text: str) -> None:
        if self._trace:
            print(f"{self.clock.now:9.4f}  {text}")  # noqa: T201 - the trace is for a person

    def join(self) -> None:
        """Start a member, some with another config than the rest."""
        self._start(self.sinks[:-1] if self.random.random() < 0.15 else self.sinks)

    def _start(self, sinks: tuple[str, ...]) -> None:
        self._born += 1
        relay = Relay(self, f"relay{self._born}", sinks)
        self.log(f"{relay.name} joins with {len(sinks)} sinks")
        self.relays = [*(other for other in self.relays if not other.is_dead), relay]

    def sinks_of(self, event: EventId) -> tuple[str, ...]:
        first = event[0] % len(self.sinks)
        return self.sinks[first], self.sinks[first - 1]

    # Sends

    def begin(self, send: Send) -> None:
        """Begin a send: the destination receives it some time before its end."""
        self.log(f"{send.dispatcher.relay.name} sends {send.event} to {send.dispatcher.sink}")
        self.invariants.begun(send)
        duration_s = self._send_s * self.random.uniform(0.2, 1)
        if self.random.random() < self._failures:
            self.clock.after(duration_s, self._end, send)
            return
        self.clock.after(duration_s * self.random.random(), self._receive, send)
        self.clock.after(duration_s, self._end, send)

    def cancel(self, send: Send) -> None:
        """Abandon a send; the destination may have it already, or may not get it."""
        send.is_over = True
        self.invariants.over(send)

    def _receive(self, send: Send) -> None:
        if not send.is_over or self.random.random() < 0.5:
            send.is_received = True
            self.invariants.receipt(send.dispatcher.sink, send.event)

    def _end(self, send: Send) -> None:
        send.dispatcher.relay.post(self._take_outcome, send)

    def _take_outcome(self, send: Send) -> None:
        if not send.is_over:
            send.is_over = True
            self.invariants.over(send)
            send.dispatcher.ended(send)

    # The sender

    def wake_others(self, accepted_by: Relay, sinks: tuple[str, ...]) -> None:
        """Announce new deliveries; in a run without polls, do what they do."""
        for relay in self.relays:
            if relay is accepted_by:
                continue
            if not self.polls:
                self.clock.after(POLL_MIN_S, relay.post, relay.wake, sinks)
            elif self.announces and self.random.random() < _HEARD:
                self.clock.after(POLL_MIN_S, relay.post, relay.announced, sinks)

    def _submit(self, event: EventId) -> None:
        if event in self.invariants.acknowledged:
            return
        able = [relay for relay in self.relays if not relay.is_dead]
        if able:
            relay = self.random.choice(able)
            self.log(f"{event} is sent to {relay.name}")
            relay.post(relay.accept, event, self._acknowledged)
        self.clock.after(SUBMIT_AGAIN_S, self._submit, event)

    def _acknowledged(self, event: EventId) -> None:
        if event in self.invariants.acknowledged:
            return
        self.log(f"{event} is acknowledged")
        self.invariants.acknowledged.add(event)
        key, number = event
        if self.clock.now < self._healed_at and number < 4:
            pause_s = self._healed_at * self.random.random() / 2
            self.submitted.add((key, number + 1))
            self.clock.after(pause_s, self._submit, (key, number + 1))

    # Events of the database

    def _committed(self, statement: Any, answer: Any) -> None:
        match statement, answer:
            case Settle(), _:
                self.invariants.settled(statement)
            case Acquire(member=member), Acquired(leases=leases):
                for sink, fence in leases:
                    self.log(f"{member} acquires {sink} under {fence}")
                    self.invariants.acquired(member, sink, fence)
        if self.on_commit is not None and isinstance(statement, Acquire | Beat):
            for relay in self.relays:
                if relay.name == statement.member and not relay.is_dead:
                    self.on_commit(relay, statement)
                    break

    # The end

    def _heal(self) -> None:
        """Make sure that commits end, and that each sink has a possible owner."""
        scenario.start_database(self)
        if self.database.standby_is_away:
            self.database.regain_standby()
        stay = (relay for relay in self.relays if not (relay.is_dead or relay.is_leaving))
        if not any(relay.sinks == set(self.sinks) for relay in stay):
            self._start(self.sinks)
        self._check_end()

    def _check_end(self) -> None:
        problem = self.invariants.unfinished()
        if problem is None:
            self._end_when_idle()
        elif self.clock.now > self._healed_at + HEALED_IN_S:
            raise Violation(f"{HEALED_IN_S} s after the last disturbance, {problem}")
        else:
            self.clock.after(1.0, self._check_end)

    def _end_when_idle(self) -> None:
        if not self.polls:
            self._is_over = True
            return
        stragglers_until = self._healed_at + LATEST_S
        self.clock.at(max(self.clock.now, stragglers_until) + 2.0, self._count_idle)

    def _count_idle(self) -> None:
        for relay in self.relays:
            relay.statements = 0
        self.clock.after(IDLE_FOR_S, self._check_idle)

    def _check_idle(self) -> None:
        members = [relay for relay in self.relays if not relay.is_dead]
        statements = sum(relay.statements for relay in members)
        self.invariants.check_idle_cost(statements, IDLE_FOR_S, len(members))
        self._is_over = True
