"""The least share of deliveries under backpressure, earned by acknowledgements.

Without it, a load that never pauses would stop all deliveries.
"""

from collections.abc import Callable
from operator import attrgetter

import msgspec

ACKNOWLEDGEMENTS_PER_DELIVERY = 10
"""Acknowledgements that earn one delivery."""

SHARED_AT = 64
"""Deliveries saved up before sinks get them: those sent together share wakeups and commits."""

SAVED_MAX = 128
"""Deliveries saved up at most, which bounds the burst after a time without any to send."""


class CreditAccount(msgspec.Struct, eq=False):
    """The deliveries that one sink may start; `notify` is called when it gets some."""

    notify: Callable[[], None]
    balance: int = 0
    turn: int = 0
    """Position of its last share among all shares."""
    seen: int = 0
    """Acknowledgements until the last `remind`."""
    stalled_at: int = 0
    """Acknowledgements after which there were none between two calls of `remind`."""

    def spend(self, deliveries: int) -> None:
        """Record that deliveries start, whether or not they needed credit."""
        self.balance = max(0, self.balance - deliveries)


class DeliveryCredit:
    """Accumulates the credit that acknowledgements earn, and shares it among the sinks.

    The credit is common to all sinks, so ten sinks delay requests no more than one.
    Credit that a sink has not used is shared again, so a stopped sink blocks no other.
    """

    def __init__(self) -> None:
        self._acknowledgements = 0
        self._saved = 0
        self._turn = 0
        self._waiting: dict[CreditAccount, None] = {}
        self._credited: list[CreditAccount] = []

    def earn(self) -> None:
        """Record one acknowledgement."""
        self._acknowledgements += 1
        if self._acknowledgements % ACKNOWLEDGEMENTS_PER_DELIVERY == 0:
            self._saved = min(self._saved + 1, SAVED_MAX)
            if self._waiting and self._saved >= SHARED_AT:
                self._share()

    def request(self, account: CreditAccount) -> None:
        """Let an account take part in the next sharing: its sink lacks nothing but credit."""
        self._waiting[account] = None

    def waive(self) -> None:
        """Notify all accounts that wait, because deliveries need no credit for now."""
        while self._waiting:
            account, _ = self._waiting.popitem()
            account.notify()

    def remind(self, account: CreditAccount) -> None:
        """Share the saved deliveries, however few, if the account is waiting for some."""
        if account.seen == self._acknowledgements:
            account.stalled_at = account.seen
        account.seen = self._acknowledgements
        if self._saved and account in self._waiting:
            self._share()

    def has_stalled(self, account: CreditAccount) -> bool:
        """Whether nothing was acknowledged between the last reminders, nor since."""
        return account.stalled_at == self._acknowledgements

    def _share(self) -> None:
        """Share equally; where that is less than one each, those go first that waited longest."""
        for account in self._credited:
            self._saved = min(self._saved + account.balance, SAVED_MAX)
            account.balance = 0
        self._credited = sorted(self._waiting, key=attrgetter("turn"))[: self._saved]
        share, self._saved = divmod(self._saved, len(self._credited))
        for account in self._credited:
            del self._waiting[account]
            self._turn += 1
            account.balance, account.turn = share, self._turn
            account.notify()
