"""Virtual time and the network between members and the database."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from relay.core.cluster.timing import ANSWER_TIMEOUT_S

LATEST_S = 8.0
"""A request whose sender has given up arrives within this time, if at all."""


class Process(Protocol):
    """A member, as the network sees it."""

    name: str
    unreachable: bool

    def post(self, action: Callable[..., None], *arguments: Any, is_timer: bool = False) -> None:
        """Run something in the process, after its pause if it is paused; never if it is dead."""
        ...


class Call:
    """A statement on its way, and its answer on the way back."""

    __slots__ = ("answered", "lost", "lost_answer", "process", "statement")

    def __init__(
        self,
        process: Process,
        statement: Any,
        answered: Callable[[Any, Any], None],
        lost: Callable[[Any], None],
    ) -> None:
        self.process = process
        self.statement = statement
        self.answered: Callable[[Any, Any], None] | None = answered
        """None once the caller has an answer, or has given up."""
        self.lost = lost
        self.lost_answer = False


class Clock:
    """Virtual time: runs actions in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._queue, (time, self._count, action, arguments))

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._queue, (self.now + delay, self._count, action, arguments))

    def run(self, is_over: Callable[[], bool]) -> None:
        queue = self._queue
        while queue and not is_over():
            self.now, _, action, arguments = heappop(queue)
            action(*arguments)


class Network:
    """Delays messages, and loses some of them: the request, or the answer, or only its punctuality.

    A request whose sender has given up may still arrive later, and run.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self.loss = 0.0
        self.latency_s = 0.004
        self.arrive: Callable[[Call], None]
        """Takes requests; set by the database."""

    def send(self, call: Call) -> None:
        delay_s = self.latency_s * self._random.random()
        if call.process.unreachable:
            self.time_out(call)
        elif self.loss and self._random.random() < self.loss:
            self.time_out(call)
            fate = self._random.random()
            if fate < 0.4:
                call.lost_answer = True
                self._clock.after(delay_s, self.arrive, call)
            elif fate < 0.7:
                self._clock.after(LATEST_S * self._random.random(), self.arrive, call)
        else:
            self._clock.after(delay_s, self.arrive, call)

    def answer(self, call: Call, answer: Any) -> None:
        if call.process.unreachable or call.lost_answer:
            self.time_out(call)
        elif call.answered is not None:
            delay_s = self.latency_s * self._random.random()
            self._clock.after(delay_s, call.process.post, self._deliver, call, answer)

    def refuse(self, call: Call) -> None:
        """Break the call's connection."""
        self._clock.after(0.001, call.process.post, self._give_up, call)

    def time_out(self, call: Call) -> None:
        """Give a call up if it has no answer by then."""
        self._clock.after(ANSWER_TIMEOUT_S, self._time_out, call)

    def _time_out(self, call: Call) -> None:
        if call.answered is not None:
            call.process.post(self._give_up, call, is_timer=True)

    @staticmethod
    def _deliver(call: Call, answer: Any) -> None:
        if call.answered is not None:
            answered, call.answered = call.answered, None
            answered(call.statement, answer)

    @staticmethod
    def _give_up(call: Call) -> None:
        if call.answered is not None:
            call.answered = None
            call.lost(call.statement)
