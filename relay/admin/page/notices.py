"""Results of actions, kept for the view that comes next."""

import secrets
from collections import OrderedDict
from typing import NamedTuple

from relay.admin.page.visit import Notice
from relay.core.clock import Clock

KEPT_MAX = 200

SHOWN_S = 60.0
"""Time for which an open page that refreshes shows its notice."""


class _Kept(NamedTuple):
    notice: Notice
    until_s: float


class Notices:
    """Keeps the latest notices in memory, by a random id that stands in the next URL."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notices: OrderedDict[str, _Kept] = OrderedDict()

    def add(self, notice: Notice) -> str:
        """Keep a notice and return its id."""
        identifier = secrets.token_urlsafe(9)
        self._notices[identifier] = _Kept(notice, self._clock.monotonic() + SHOWN_S)
        if len(self._notices) > KEPT_MAX:
            self._notices.popitem(last=False)
        return identifier

    def find(self, identifier: str) -> Notice | None:
        """Return a notice; None if its time is over."""
        kept = self._notices.get(identifier)
        return kept.notice if kept and self._clock.monotonic() < kept.until_s else None
