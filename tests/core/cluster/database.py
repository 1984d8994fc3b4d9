"""A model of the PostgreSQL store: what each statement reads, locks and changes."""

import math
from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from relay.core.cluster.statements import (
    Acquire,
    Acquired,
    Beat,
    Fence,
    Leave,
    OwnershipRow,
    Poll,
    Polled,
    Release,
    Renewed,
    Survey,
    Surveyed,
)
from relay.core.cluster.timing import LEASE_S
from tests.core.cluster.network import Clock, Network
from tests.core.cluster.server import Blocked, Server, Transaction
from tests.core.cluster.tables import (
    GONE,
    Confirm,
    FenceGuard,
    Insert,
    Ownership,
    Pending,
    Read,
    Settle,
    Settled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

READ_MAX = 8
"""Deliveries that one read returns."""


class Database(Server):
    """Runs the statements of the cluster, and those of a store."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        random: Random,
        sinks: tuple[str, ...],
        *,
        synchronous: bool,
    ) -> None:
        super().__init__(clock, network, random, sinks, synchronous=synchronous)
        self.settles_stall_until = 0.0
        self._read_up_to: dict[tuple[str, str], int] = {}
        self._statements: dict[type, Callable[[Any, Transaction], None]] = {
            Beat: self._beat,
            Survey: self._survey,
            Acquire: self._acquire,
            Release: self._release,
            Leave: self._leave,
            Poll: self._poll,
            Insert: self._insert,
            Confirm: self._confirm,
            Read: self._read,
            Settle: self._settle,
        }

    def execute(self, statement: Any, transaction: Transaction) -> None:
        self._statements[type(statement)](statement, transaction)

    def stall_s(self, statement: Any) -> float:
        if isinstance(statement, Settle) and self._clock.now < self.settles_stall_until:
            return self.settles_stall_until - self._clock.now
        return 0.0

    def _beat(self, beat: Beat, transaction: Transaction) -> None:
        tables, now = self.tables, self._now
        self._lock(transaction, "members", beat.member)
        renewed = []
        for sink, fence in beat.leases:
            row = tables.ownership.get(sink)
            if row is None or not self._is_valid(row, beat.member, fence):
                continue
            self._lock(transaction, "ownership", sink)
            row = row._replace(version=row.version + 1, expires_at=now + LEASE_S)
            transaction.changes.append((tables.ownership, sink, row))
            renewed.append((sink, fence))
        for sink in beat.sinks:
            if sink not in tables.ownership and ("ownership", sink) not in self._locks:
                transaction.exclusive.append(("ownership", sink))
                new = Ownership(None, 0, 0, -math.inf)
                transaction.changes.append((tables.ownership, sink, new))
        if self._run not in tables.runs:
            transaction.changes.append((tables.runs, self._run, now))
        sinks = frozenset(beat.sinks)
        transaction.changes.append((tables.members, beat.member, (sinks, now)))
        transaction.answer = Renewed(frozenset(renewed))

    def _survey(self, survey: Survey, transaction: Transaction) -> None:
        now, tables = self._now, self.tables
        since = tables.runs.get(self._run)
        transaction.answer = Surveyed(
            *self._run,
            fresh=since is None or now - since < LEASE_S,
            members={
                member: sinks
                for member, (sinks, at) in tables.members.items()
                if now - LEASE_S < at <= now + LEASE_S
            },
            rows=tuple(
                OwnershipRow(sink, row.holder, row.version, self._is_expired(row))
                for sink, row in tables.ownership.items()
            ),
            is_news=any(self._news(transaction, tables.pending)),
        )

    def _acquire(self, acquire: Acquire, transaction: Transaction) -> None:
        tables = self.tables
        leases = []
        if (acquire.history, acquire.start) == self._run:
            for sink, version in acquire.rows:
                row = tables.ownership.get(sink)
                if row is None or row.version != version or ("ownership", sink) in self._locks:
                    continue
                if row.holder in (None, acquire.member) or self._is_expired(row):
                    transaction.exclusive.append(("ownership", sink))
                    new = Ownership(acquire.member, row.fence + 1, version + 1, self._now + LEASE_S)
                    transaction.changes.append((tables.ownership, sink, new))
                    leases.append((sink, Fence(acquire.history, new.fence)))
        transaction.answer = Acquired(tuple(leases))

    def _release(self, release: Release, transaction: Transaction) -> None:
        row = self.tables.ownership.get(release.sink)
        fence = Fence(self._run[0], 0 if row is None else row.fence)
        if row is not None and row.holder == release.member and release.fence == fence:
            self._free(release.sink, row, transaction)

    def _leave(self, leave: Leave, transaction: Transaction) -> None:
        self._lock(transaction, "members", leave.member)
        transaction.changes.append((self.tables.members, leave.member, GONE))
        for sink, row in self.tables.ownership.items():
            if row.holder == leave.member:
                self._free(sink, row, transaction)

    def _free(self, sink: str, row: Ownership, transaction: Transaction) -> None:
        self._lock(transaction, "ownership", sink)
        new = Ownership(None, row.fence, row.version + 1, -math.inf)
        transaction.changes.append((self.tables.ownership, sink, new))

    def _poll(self, poll: Poll, transaction: Transaction) -> None:
        transaction.answer = Polled(frozenset(self._news(transaction, poll.sinks)))

    def _news(self, transaction: Transaction, sinks: Iterable[str]) -> Iterator[str]:
        """Yield the sinks with deliveries that the relay has not read."""
        pending, name = self.tables.pending, transaction.call.process.name
        for sink in sinks:
            if max(pending[sink], default=0) > self._read_up_to.get((name, sink), 0):
                yield sink

    def _insert(self, insert: Insert, transaction: Transaction) -> None:
        tables = self.tables
        self._lock(transaction, "events", insert.event)
        if insert.event in tables.events:
            transaction.answer = "known"
            return
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        transaction.changes += [
            (tables.events, insert.event, seq),
            (tables.ids, seq, insert.event),
            *((tables.pending[sink], seq, 0) for sink in insert.sinks),
        ]
        transaction.answer = "new"

    def _confirm(self, confirm: Confirm, transaction: Transaction) -> None:
        tables = self.tables
        self._lock(transaction, "members", confirm.member)
        row = tables.members.get(confirm.member, (frozenset(), -math.inf))
        transaction.changes.append((tables.members, confirm.member, row))
        transaction.answer = "confirmed" if confirm.event in tables.events else "missing"

    def _read(self, read: Read, transaction: Transaction) -> None:
        sink = read.guard.sink
        if not self._holds(read.guard):
            transaction.answer = None
            return
        ids, pending = self.tables.ids, self.tables.pending[sink]
        seqs = sorted(pending)[:READ_MAX]
        transaction.answer = tuple(Pending(seq, ids[seq], pending[seq]) for seq in seqs)
        if seqs:
            self._read_up_to[transaction.call.process.name, sink] = seqs[-1]

    def _settle(self, settle: Settle, transaction: Transaction) -> None:
        sink = settle.guard.sink
        if not self._holds(settle.guard):
            transaction.answer = Settled(owned=False)
            return
        self.lock_fence(sink, transaction)
        pending = self.tables.pending[sink]
        for seq, attempts, delivered in settle.outcomes:
            if pending.get(seq) == attempts:
                self._lock(transaction, sink, seq)
                value = GONE if delivered else attempts + 1
                transaction.changes.append((pending, seq, value))
        transaction.answer = Settled(owned=True)

    def lock_fence(self, sink: str, transaction: Transaction) -> None:
        """Keep the ownership row from changing before the commit: FOR SHARE."""
        lock = "ownership", sink
        if self._locks.get(lock) == -1:
            raise Blocked
        transaction.shared.append(lock)

    def _holds(self, guard: FenceGuard) -> bool:
        row = self.tables.ownership.get(guard.sink)
        return row is not None and self._is_valid(row, guard.member, guard.fence)

    def _is_valid(self, row: Ownership, member: str, fence: Fence) -> bool:
        is_current = row.holder == member and fence == (self._run[0], row.fence)
        return is_current and row.expires_at > self._now

    def _is_expired(self, row: Ownership) -> bool:
        return not self._now <= row.expires_at <= self._now + LEASE_S
