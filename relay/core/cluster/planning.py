"""What one member of a cluster does next: which statements to send, and for which sinks it sends.

No I/O, no clock: times are seconds of a clock that goes on while the machine is suspended
(CLOCK_BOOTTIME), passed in; so are random numbers.
"""

import math
from collections.abc import Collection, Iterable
from random import Random

from relay.core.cluster.leases import OwnershipLeases
from relay.core.cluster.ownership import OwnershipPlanner
from relay.core.cluster.statements import (
    Acquire,
    Acquired,
    Answer,
    Beat,
    Control,
    Fence,
    Leave,
    Poll,
    Polled,
    Release,
    Released,
    Renewed,
    Statement,
    Survey,
    Surveyed,
)
from relay.core.cluster.timing import (
    POLL_FAST_FOR_S,
    POLL_LISTENING_S,
    POLL_MAX_S,
    POLL_MIN_S,
    RENEW_S,
    RETRY_S,
    SURVEY_JITTER,
    SURVEY_S,
)


class Planner:
    """Plans for one member, from its start to its departure.

    The caller sends what `plan` returns, passes each answer to `answered` or, if there is none
    within `ANSWER_TIMEOUT_S`, calls `lost`; and plans again after each call, and at `due_s`.
    After each call it compares `leases` with its dispatchers. A `held` lease gets one; that of a
    `draining` lease ends once its sends have; that of a `lost` lease cancels its sends. When one
    has ended, and its outcomes are settled or given up, the caller reports `drained`.
    """

    def __init__(self, member: str, sinks: Iterable[str], *, random: Random) -> None:
        """`member` is unique to this process: a restarted relay is another member."""
        self._member = member
        self._sinks = frozenset(sinks)
        self._random = random
        self._ownership = OwnershipPlanner(member)
        self._polls = PollSchedule()
        self._control: tuple[Control, float] | None = None
        """The statement on its way, and the time before it was sent."""
        self._poll: Poll | None = None
        self._acquire: Acquire | None = None
        self._beat_due_s = self._survey_due_s = -math.inf
        self._control_due_s = -math.inf
        self._leaving = False
        self.leases = OwnershipLeases()
        """All leases, also those whose dispatchers have to end."""
        self.has_left = False

    def may_send(self, sink: str, fence: Fence, now_s: float) -> bool:
        """Return whether a send may start now; to be asked before each one, with a clock just read.

        A flag that a timer sets is too late: after a pause, a send may run before the timer.
        """
        return self.leases.may_send(sink, fence, now_s)

    def fenced(self, sink: str, fence: Fence) -> None:
        """Record that a settlement was refused, because the fence is no longer valid."""
        self.leases.lose(sink, fence)

    def drained(self, sink: str, fence: Fence) -> None:
        """Record that the dispatcher of this lease has ended."""
        self.leases.drained(sink, fence)

    def configure(self, sinks: Iterable[str]) -> None:
        """Dispatch these sinks from now on."""
        self._sinks = frozenset(sinks)
        self._acquire = None
        self._beat_due_s = -math.inf
        for lease in self.leases:
            if lease.sink not in self._sinks:
                self.leases.drain(lease.sink)

    def beat_soon(self) -> None:
        """Send a heartbeat soon, because there is something to tell the others."""
        self._beat_due_s = -math.inf

    def listens(self, now_s: float, *, is_listening: bool) -> None:
        """Record whether other members' announcements arrive; without them it polls often."""
        self._polls.listens(now_s, is_listening=is_listening)

    def announced(self, sinks: Collection[str] | None) -> Collection[str]:
        """Take an announcement of new deliveries; return the sinks whose dispatchers to wake.

        None stands for all sinks. Of its own acceptances a member announces nothing to itself, but
        for an empty collection: it has woken their sinks.
        """
        self._polls.announced()
        if sinks is None:
            return self._held()
        return [sink for sink in sinks if self.leases.is_held(sink)]

    def leave(self) -> None:
        """Hand over all sinks, then leave the cluster; `has_left` is true afterwards."""
        self._leaving = True
        self.configure(())

    def due_s(self) -> float:
        """Return when `plan` has to be called again, unless something happens before."""
        due_s = self.leases.next_deadline_s()
        if self._control is None and not self.has_left:
            due_s = min(due_s, self._next_control_s())
        if self._poll is None and any(lease.state == "held" for lease in self.leases):
            due_s = min(due_s, self._polls.due_s)
        return due_s

    def plan(self, now_s: float) -> list[Statement]:
        """Return the statements to be sent now, at once and side by side."""
        self.leases.expire(now_s)
        statements: list[Statement] = []
        if self._control is None and now_s >= self._control_due_s and not self.has_left:
            control = self._next_control(now_s)
            if control is not None:
                self._control = control, now_s
                statements.append(control)
        if self._poll is None and now_s >= self._polls.due_s:
            sinks = self._held()
            if sinks:
                self._poll = Poll(sinks)
                statements.append(self._poll)
        return statements

    def answered(self, statement: Statement, answer: Answer, now_s: float) -> Collection[str]:
        """Take an answer; return the sinks whose dispatchers must be woken."""
        if isinstance(statement, Poll):
            return self._polled(statement, answer, now_s)
        if self._control is not None and self._control[0] is statement:
            sent_s = self._control[1]
            self._control = None
            self.leases.expire(now_s)
            self._controlled(statement, answer, sent_s=sent_s, now_s=now_s)
            if isinstance(answer, Surveyed):
                self._polls.answered(now_s, is_news=answer.is_news)
                return self._held() if answer.is_news else ()
        return ()

    def lost(self, statement: Statement, now_s: float) -> None:
        """Record that there is no answer: the statement may have run, or may still run."""
        if isinstance(statement, Poll):
            if statement is self._poll:
                self._poll = None
                self._polls.lost(now_s)
        elif self._control is not None and self._control[0] is statement:
            self._control = None
            self._control_due_s = now_s + RETRY_S
            if isinstance(statement, Beat):
                self._beat_due_s = self._control_due_s

    def _next_control_s(self) -> float:
        if self._acquire is not None or self.leases.to_release() or self._is_done():
            return self._control_due_s
        due_s = self._beat_due_s if self._leaving else min(self._beat_due_s, self._survey_due_s)
        return max(due_s, self._control_due_s)

    def _next_control(self, now_s: float) -> Control | None:
        if self._is_done():
            return Leave(self._member)
        if now_s >= self._beat_due_s:
            self._beat_due_s = now_s + RENEW_S
            return Beat(self._member, tuple(sorted(self._sinks)), self.leases.to_renew())
        lease = self.leases.to_release()
        if lease is not None:
            self.leases.released(lease)
            return Release(self._member, lease.sink, lease.fence)
        if self._acquire is not None:
            acquire, self._acquire = self._acquire, None
            return acquire
        if now_s >= self._survey_due_s and not self._leaving:
            jitter = SURVEY_JITTER * (2 * self._random.random() - 1)
            self._survey_due_s = now_s + SURVEY_S * (1 + jitter)
            return Survey()
        return None

    def _held(self) -> tuple[str, ...]:
        return tuple(lease.sink for lease in self.leases if lease.state == "held")

    def _is_done(self) -> bool:
        return self._leaving and not self.leases

    def _controlled(
        self, statement: Control, answer: Answer, *, sent_s: float, now_s: float
    ) -> None:
        match statement, answer:
            case Beat(leases=requested), Renewed(leases=renewed):
                self.leases.renewed(requested, renewed, sent_s=sent_s)
            case Survey(), Surveyed():
                self._surveyed(answer, now_s)
            case Acquire(), Acquired(leases=leases):
                for sink, fence in leases:
                    self.leases.acquired(sink, fence, sent_s=sent_s)
                    if sink not in self._sinks:
                        self.leases.drain(sink)
                self.leases.expire(now_s)
            case Leave(), Released():
                self.has_left = True
            case Release(), Released():
                pass
            case _:
                raise TypeError(f"{type(answer).__name__} answers no {type(statement).__name__}")

    def _surveyed(self, survey: Surveyed, now_s: float) -> None:
        self._ownership.observe(survey, now_s)
        if self._leaving:
            return
        self._acquire, sink = self._ownership.decide(survey, self.leases, self._sinks, now_s)
        if sink is not None:
            self.leases.drain(sink)

    def _polled(self, statement: Poll, answer: Answer, now_s: float) -> Collection[str]:
        if statement is not self._poll or not isinstance(answer, Polled):
            return ()
        self._poll = None
        owned = [sink for sink in answer.sinks if self.leases.is_held(sink)]
        self._polls.answered(now_s, is_news=bool(owned))
        return owned


class PollSchedule:
    """Schedule of a member's polls: frequent while unannounced deliveries arrive."""

    def __init__(self) -> None:
        self._interval_s = POLL_MAX_S
        self._news_s = -math.inf
        self._is_listening = False
        self._is_announced = False
        """Whether deliveries were announced since the last look."""
        self.due_s = -math.inf

    def listens(self, now_s: float, *, is_listening: bool) -> None:
        """Note whether other members' announcements arrive."""
        if self._is_listening and not is_listening:
            self.due_s = min(self.due_s, now_s + RETRY_S)
        self._is_listening = is_listening

    def announced(self) -> None:
        """Note that the next look finds deliveries whose sinks are awake already."""
        self._is_announced = True

    def answered(self, now_s: float, *, is_news: bool) -> None:
        """Take an answer of a poll or a survey; `is_news`: there are new deliveries."""
        if is_news and not (self._is_listening and self._is_announced):
            self._news_s = now_s
            self._interval_s = POLL_MIN_S
        elif now_s - self._news_s >= POLL_FAST_FOR_S:
            longest_s = POLL_LISTENING_S if self._is_listening else POLL_MAX_S
            self._interval_s = min(2 * self._interval_s, longest_s)
        self._is_announced = False
        self.due_s = now_s + self._interval_s

    def lost(self, now_s: float) -> None:
        self.due_s = now_s + RETRY_S
