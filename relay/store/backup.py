"""Protocol of a store's backups, apart from the engines that make them."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

MEDIA_TYPE = "application/vnd.sqlite3"
"""Of every copy, because no other engine makes any."""


class Backups(Protocol):
    """Consistent copies of the whole store."""

    @property
    def instead(self) -> str | None:
        """Return what to use on an engine that makes no copies; None on one that does."""
        ...

    def clear(self) -> None:
        """Remove the copies of a killed relay."""
        ...

    def copied(self) -> AbstractAsyncContextManager[Path]:
        """Make a copy that exists until the block ends.

        Raises StoreLacks on an engine that makes none, StoreFull and StoreError.
        """
        ...
