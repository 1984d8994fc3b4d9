"""Results of actions, kept until the next view has shown them."""

import secrets
from collections import OrderedDict

from relay.admin.page.visit import Notice

KEPT_MAX = 200


class Notices:
    """Keeps the latest notices in memory, by a random id that stands in the next URL."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, Notice] = OrderedDict()

    def add(self, notice: Notice) -> str:
        """Keep a notice and return its id."""
        identifier = secrets.token_urlsafe(9)
        self._notices[identifier] = notice
        if len(self._notices) > KEPT_MAX:
            self._notices.popitem(last=False)
        return identifier

    def take(self, identifier: str) -> Notice | None:
        """Return a notice; None if it was taken already."""
        return self._notices.pop(identifier, None)
