"""The least share of deliveries under backpressure, earned by acknowledgements.

Without it, a load that never pauses would stop all deliveries.
"""

from collections.abc import Callable
from operator import attrgetter

import msgspec

ACKNOWLEDGEMENTS_PER_DELIVERY = 9
"""Acknowledgements that earn one delivery."""

SHARED_AT = 64
"""Deliveries saved up before a sink gets them: those sent together share wakeups and commits."""

SAVED_MAX = 128
"""Deliveries saved up at most, which bounds the burst after a time without any to send."""


class CreditAccount(msgspec.Struct, eq=False):
    """The deliveries that one sink may start; `notify` is called when it gets some."""

    notify: Callable[[], None]
    balance: int = 0
    turn: int = 0
    """Position of its last turn among all turns."""
    seen: int = 0
    """Acknowledgements until the last `remind`."""
    stalled_at: int = 0
    """Acknowledgements after which there were none between two calls of `remind`."""

    def spend(self, deliveries: int) -> None:
        """Record that deliveries start, whether or not they needed credit."""
        self.balance = max(0, self.balance - deliveries)


class DeliveryCredit:
    """Accumulates the credit that acknowledgements earn, and gives it to the sinks in turns.

    The credit is common to all sinks, so ten sinks delay requests no more than one.
    What a sink has not used by the next turn goes to the next one, so a stopped sink blocks none.
    """

    def __init__(self) -> None:
        self._acknowledgements = 0
        self._saved = 0
        self._turn = 0
        self._waiting: dict[CreditAccount, None] = {}
        self._credited: CreditAccount | None = None
        """The account whose turn was the last."""

    def earn(self) -> None:
        """Record one acknowledgement."""
        self._acknowledgements += 1
        if self._acknowledgements % ACKNOWLEDGEMENTS_PER_DELIVERY == 0:
            self._saved = min(self._saved + 1, SAVED_MAX)
            if self._waiting and self._saved >= SHARED_AT:
                self._give()

    def request(self, account: CreditAccount) -> None:
        """Let an account have its turn: its sink lacks nothing but credit."""
        self._waiting[account] = None

    def is_requested(self) -> bool:
        """Whether an account waits for credit."""
        return bool(self._waiting)

    def waive(self) -> None:
        """Notify all accounts that wait, because deliveries need no credit for now."""
        while self._waiting:
            account, _ = self._waiting.popitem()
            account.notify()

    def remind(self, account: CreditAccount) -> None:
        """Give away the saved deliveries, however few, if the account is waiting for some."""
        if account.seen == self._acknowledgements:
            account.stalled_at = account.seen
        account.seen = self._acknowledgements
        if self._saved and account in self._waiting:
            self._give()

    def has_stalled(self, account: CreditAccount) -> bool:
        """Whether nothing was acknowledged between the last reminders, nor since."""
        return account.stalled_at == self._acknowledgements

    def _give(self) -> None:
        """Give all to the account that has waited longest: eight small shares cost far more."""
        if self._credited is not None:
            self._saved = min(self._saved + self._credited.balance, SAVED_MAX)
            self._credited.balance = 0
        account = self._credited = min(self._waiting, key=attrgetter("turn"))
        del self._waiting[account]
        self._turn += 1
        account.balance, account.turn, self._saved = self._saved, self._turn, 0
        account.notify()
