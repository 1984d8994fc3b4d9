"""A server with one standby: transactions, row locks, commits that wait, crashes, promotions."""

import math
from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING, Any

from relay.core.cluster.statements import Released
from tests.core.cluster.network import Call, Clock, Network
from tests.core.cluster.tables import Change, Commit, Tables

if TYPE_CHECKING:
    from collections.abc import Callable

Lock = tuple[str, Any]


class Transaction:
    """A statement that has begun: it holds locks until it commits."""

    __slots__ = ("answer", "call", "changes", "commit", "exclusive", "is_aborted", "shared")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.changes: list[Change] = []
        self.exclusive: list[Lock] = []
        self.shared: list[Lock] = []
        self.answer: Any = Released()
        self.commit: Commit | None = None
        self.is_aborted = False


class Blocked(Exception):
    """A row is locked: begin again after the next commit."""


class Server(ABC):
    """Runs each statement as one transaction, under its own, unreliable clock."""

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
        self._history = self._start = 1
        self._next_seq = 1
        self._log: list[Commit] = []
        self._open: list[Transaction] = []
        self._waiting: list[Call] = []
        self._locks: dict[Lock, int] = {}
        """Shared holders of each locked row; -1 for an exclusive one."""
        self.tables.runs[self._run] = -math.inf
        self.on_commit: Callable[[Any, Any], None]
        """Takes each statement and its answer, before its changes are visible."""
        self.has_lost_commits = False
        network.arrive = self.arrive

    @property
    def _run(self) -> tuple[str, str]:
        return str(self._history), str(self._start)

    @property
    def _now(self) -> float:
        return self._clock.now + self.clock_offset

    @abstractmethod
    def execute(self, statement: Any, transaction: Transaction) -> None:
        """Fill in the transaction; raises Blocked if a row that it needs is locked."""

    @abstractmethod
    def stall_s(self, statement: Any) -> float:
        """Return how long a statement waits for something else, once it has begun."""

    # Transactions

    def arrive(self, call: Call) -> None:
        if not self.is_up:
            self._network.refuse(call)
            return
        transaction = Transaction(call)
        try:
            self.execute(call.statement, transaction)
        except Blocked:
            self._waiting.append(call)
            self._network.time_out(call)
            return
        if not transaction.changes:
            self._network.answer(call, transaction.answer)
            return
        stall_s = self.stall_s(call.statement)
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
            raise Blocked
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
