"""A simple dispatcher: reads, sends and settles one sink's deliveries under one lease."""

from typing import TYPE_CHECKING

from relay.core.cluster.statements import Fence
from relay.core.cluster.timing import RETRY_S
from tests.core.cluster.database import READ_MAX
from tests.core.cluster.tables import EventId, FenceGuard, Outcome, Pending, Read, Settle, Settled

if TYPE_CHECKING:
    from tests.core.cluster.relay import Relay

CONCURRENCY = 3

READ_AGAIN_S = 10.0
"""A relay is not told again of what it missed while it was paused: read in any case."""


class Send:
    """An attempt; `pauses` counts those of its process before it began."""

    __slots__ = ("dispatcher", "event", "is_over", "is_received", "pauses", "seq")

    def __init__(self, dispatcher: "Dispatcher", seq: int, event: EventId) -> None:
        self.dispatcher = dispatcher
        self.seq = seq
        self.event = event
        self.pauses = dispatcher.relay.pauses
        self.is_over = self.is_received = False


class Dispatcher:
    """Sends for as long as the planner allows."""

    def __init__(self, relay: "Relay", sink: str, fence: Fence) -> None:
        self.relay = relay
        self.sink = sink
        self.fence = fence
        self.guard = FenceGuard(relay.name, sink, fence)
        self.is_draining = False
        self.has_ended = False
        self.sends: dict[int, Send] = {}
        self._buffer: dict[int, tuple[EventId, int]] = {}
        self._settled: set[int] = set()
        self._outcomes: list[Outcome] = []
        self._settling = self._reading = self._read_again = False
        self._read_in_any_case()

    def read(self) -> None:
        if self._reading:
            self._read_again = True
        elif not self.is_draining and not self.has_ended:
            self._reading = True
            self.relay.call(Read(self.guard), self._have_read, self._not_read)

    def drain(self) -> None:
        """Start nothing more; end once all is settled."""
        self.is_draining = True
        if not self.sends and not self._outcomes:
            self._end()

    def cancel(self) -> None:
        """End at once: the lease is lost."""
        for send in self.sends.values():
            self.relay.world.cancel(send)
        self.sends.clear()
        self._outcomes.clear()
        self._end()

    def ended(self, send: Send) -> None:
        """Take the outcome of a send."""
        if self.has_ended or self.sends.get(send.seq) is not send:
            return
        del self.sends[send.seq]
        attempts = self._buffer[send.seq][1]
        self._outcomes.append(Outcome(send.seq, attempts, send.is_received))
        self._settle()
        self._start()

    def _end(self) -> None:
        self.has_ended = True
        self.relay.drained(self)

    def _have_read(self, read: Read, rows: tuple[Pending, ...] | None) -> None:
        self._reading = False
        if self.has_ended:
            return
        if rows is None:
            self.relay.fenced(self)
            return
        for seq, event, attempts in rows:
            if seq not in self._buffer and seq not in self._settled:
                self._buffer[seq] = event, attempts
        self._start()
        if self._read_again or len(rows) == READ_MAX:
            self._read_again = False
            self.relay.world.clock.after(0.05, self.relay.post, self.read)

    def _read_in_any_case(self) -> None:
        if not self.has_ended:
            self.read()
            self.relay.world.clock.after(READ_AGAIN_S, self.relay.post, self._read_in_any_case)

    def _not_read(self, read: Read) -> None:
        self._reading = False
        self.relay.world.clock.after(RETRY_S, self.relay.post, self.read)

    def _start(self) -> None:
        if self.is_draining:
            return
        unsettled = {outcome.seq for outcome in self._outcomes}
        is_ordered = self.sink in self.relay.world.ordered
        keys = set()
        for seq in sorted(self._buffer):
            event, _ = self._buffer[seq]
            is_next = event[0] not in keys
            keys.add(event[0])
            if seq in self.sends or seq in unsettled or (is_ordered and not is_next):
                continue
            if len(self.sends) >= CONCURRENCY or not self.relay.may_send(self):
                return
            self.sends[seq] = send = Send(self, seq, event)
            self.relay.world.begin(send)

    def _settle(self) -> None:
        if self._outcomes and not self._settling and not self.has_ended:
            self._settling = True
            settle = Settle(self.guard, tuple(self._outcomes))
            self.relay.call(settle, self._have_settled, self._not_settled)

    def _have_settled(self, settle: Settle, answer: Settled) -> None:
        self._settling = False
        if self.has_ended:
            return
        if not answer.owned:
            self.relay.fenced(self)
            return
        del self._outcomes[: len(settle.outcomes)]
        for seq, attempts, delivered in settle.outcomes:
            if delivered:
                self._settled.add(seq)
                del self._buffer[seq]
            else:
                self._buffer[seq] = self._buffer[seq][0], attempts + 1
        if self.is_draining:
            if not self.sends and not self._outcomes:
                self._end()
                return
        else:
            self._start()
        self._settle()

    def _not_settled(self, settle: Settle) -> None:
        """Run the same settlement again: its outcome is unknown."""
        self.relay.world.clock.after(RETRY_S, self.relay.post, self._settle_again, settle)

    def _settle_again(self, settle: Settle) -> None:
        if not self.has_ended:
            self.relay.call(settle, self._have_settled, self._not_settled)
