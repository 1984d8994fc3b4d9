"""A model of PostgreSQL with one standby: row locks, commits that wait, crashes and promotions."""

import math
from random import Random
from typing import TYPE_CHECKING, Any

from relay.core.cluster.statements import (
    Acquire,
    Acquired,
    Beat,
    Done,
    Fence,
    Guard,
    Leave,
    Notify,
    OwnershipRow,
    Poll,
    Polled,
    Release,
    Renewed,
    Survey,
    Surveyed,
)
from relay.core.cluster.timing import LEASE_S
from tests.core.cluster.network import Call, Clock, Network
from tests.core.cluster.tables import (
    GONE,
    Change,
    Commit,
    Confirm,
    Insert,
    Ownership,
    Pending,
    Read,
    Settle,
    Settled,
    Tables,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Lock = tuple[str, Any]

READ_MAX = 8
"""Deliveries that one read returns."""


class Transaction:
    """A statement that has begun: it holds locks until it commits."""

    __slots__ = ("answer", "call", "changes", "commit", "exclusive", "is_aborted", "shared")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.changes: list[Change] = []
        self.exclusive: list[Lock] = []
        self.shared: list[Lock] = []
        self.answer: Any = Done()
        self.commit: Commit | None = None
        self.is_aborted = False


class _Blocked(Exception):
    """A row is locked: begin again after the next commit."""


class Database:
    """Runs each statement as one transaction, under the server's own, unreliable clock."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        random: Random,
        sinks: tuple[str, ...],
        *,
        synchronous: bool,
    ) -> None:
        self._clock = clock
        self._network = network
        self._random = random
        self.synchronous = synchronous
        self.tables = Tables(sinks)
        self.is_up = True
        self.clock_offset = 0.0
        self.lag_s = 0.002
        self.standby_is_away = False
        self.settles_stall_until = 0.0
        self._history = self._start = 1
        self._next_seq = 1
        self._log: list[Commit] = []
        self._open: list[Transaction] = []
        self._waiting: list[Call] = []
        self._locks: dict[Lock, int] = {}
        """Shared holders of each locked row; -1 for an exclusive one."""
        self.tables.runs[self._run] = -math.inf
        self._read_up_to: dict[tuple[str, str], int] = {}
        self.on_notify: Callable[[str, tuple[str, ...]], None]
        self.on_commit: Callable[[Any, Any], None]
        """Takes each statement and its answer, before its changes are visible."""
        self.has_lost_commits = False
        self._statements: dict[type, Callable[[Any, Transaction], None]] = {
            Beat: self._beat,
            Survey: self._survey,
            Acquire: self._acquire,
            Release: self._release,
            Leave: self._leave,
            Poll: self._poll,
            Notify: self._notify,
            Insert: self._insert,
            Confirm: self._confirm,
            Read: self._read,
            Settle: self._settle,
        }
        network.arrive = self.arrive

    @property
    def _run(self) -> tuple[str, str]:
        return str(self._history), str(self._start)

    @property
    def _now(self) -> float:
        return self._clock.now + self.clock_offset

    # Transactions

    def arrive(self, call: Call) -> None:
        if not self.is_up:
            self._network.refuse(call)
            return
        transaction = Transaction(call)
        try:
            self._statements[type(call.statement)](call.statement, transaction)
        except _Blocked:
            self._waiting.append(call)
            self._network.time_out(call)
            return
        if not transaction.changes:
            self._network.answer(call, transaction.answer)
            return
        stall_s = self._stall_s(call.statement)
        if not stall_s and not self.synchronous:
            self._flush(transaction)
            return
        self._open.append(transaction)
        for lock in transaction.exclusive:
            self._locks[lock] = -1
        for lock in transaction.shared:
            self._locks[lock] = self._locks.get(lock, 0) + 1
        if stall_s:
            self._network.time_out(call)
            self._clock.after(stall_s, self._flush, transaction)
        else:
            self._flush(transaction)

    def _stall_s(self, statement: Any) -> float:
        """For how long a statement waits for something else, once it has begun."""
        if isinstance(statement, Settle) and self._clock.now < self.settles_stall_until:
            return self.settles_stall_until - self._clock.now
        return 0.0

    def _flush(self, transaction: Transaction) -> None:
        """Write the transaction to this server's disk; a standby may have to follow."""
        if transaction.is_aborted:
            return
        received_at = math.inf
        if not self.standby_is_away:
            earliest = self._log[-1].received_at if self._log else 0.0
            received_at = max(earliest, self._clock.now + self.lag_s * self._random.random())
        commit = transaction.commit = Commit(transaction.changes, received_at)
        self._log.append(commit)
        if not self.synchronous:
            self._commit(transaction)
        elif received_at < math.inf:
            self._clock.at(received_at, self._commit, transaction)
        else:
            self._network.time_out(transaction.call)

    def _commit(self, transaction: Transaction) -> None:
        commit = transaction.commit
        if commit is None or commit.is_visible or transaction.is_aborted:
            return
        self._make_visible(transaction)
        self._network.answer(transaction.call, transaction.answer)
        if transaction in self._open:
            self._open.remove(transaction)
            self._unlock(transaction)

    def _make_visible(self, transaction: Transaction) -> None:
        assert transaction.commit is not None
        self.on_commit(transaction.call.statement, transaction.answer)
        transaction.commit.apply()

    def _unlock(self, transaction: Transaction) -> None:
        for lock in transaction.exclusive:
            del self._locks[lock]
        for lock in transaction.shared:
            self._locks[lock] -= 1
            if not self._locks[lock]:
                del self._locks[lock]
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.arrive(call)

    def _lock(self, transaction: Transaction, table: str, key: Any) -> None:
        lock = table, key
        if lock in self._locks:
            raise _Blocked
        transaction.exclusive.append(lock)

    # Failures

    def crash(self) -> None:
        """Kill the server; commits that waited for the standby are visible after its recovery."""
        self.is_up = False
        transactions, self._open = self._open, []
        for transaction in transactions:
            transaction.is_aborted = True
            if transaction.commit is not None and not transaction.commit.is_visible:
                self._make_visible(transaction)
            self._network.refuse(transaction.call)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self._network.refuse(call)
        self._locks.clear()

    def restart(self) -> None:
        self.is_up = True
        self._start += 1

    def promote(self, clock_offset: float) -> None:
        """Continue on the standby, which lacks what it has not received."""
        while self._log and self._log[-1].received_at > self._clock.now:
            self._log.pop().revert()
            self.has_lost_commits = True
        self._history += 1
        self.clock_offset = clock_offset
        self.standby_is_away = False
        self._next_seq = max(self.tables.ids, default=0) + 1
        self.restart()

    def lose_standby(self) -> None:
        self.standby_is_away = True

    def regain_standby(self) -> None:
        """Let the standby catch up."""
        self.standby_is_away = False
        for commit in self._log:
            if commit.received_at == math.inf:
                commit.received_at = self._clock.now + self.lag_s
        for transaction in self._open:
            if transaction.commit is not None:
                self._clock.after(self.lag_s, self._commit, transaction)

    # Statements

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
        pending, name = self.tables.pending, transaction.call.process.name
        news = (
            sink
            for sink in poll.sinks
            if max(pending[sink], default=0) > self._read_up_to.get((name, sink), 0)
        )
        transaction.answer = Polled(frozenset(news))

    def _notify(self, notify: Notify, transaction: Transaction) -> None:
        self.on_notify(transaction.call.process.name, notify.sinks)

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
            raise _Blocked
        transaction.shared.append(lock)

    def _holds(self, guard: Guard) -> bool:
        row = self.tables.ownership.get(guard.sink)
        return row is not None and self._is_valid(row, guard.member, guard.fence)

    def _is_valid(self, row: Ownership, member: str, fence: Fence) -> bool:
        is_current = row.holder == member and fence == (self._run[0], row.fence)
        return is_current and row.expires_at > self._now

    def _is_expired(self, row: Ownership) -> bool:
        return not self._now <= row.expires_at <= self._now + LEASE_S
