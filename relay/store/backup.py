"""Protocol of a store's backups."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class Backups(Protocol):
    """Consistent copies of the whole store."""

    def clear(self) -> None:
        """Remove the copies of a killed relay."""
        ...

    def copied(self) -> AbstractAsyncContextManager[Path]:
        """Make a copy that exists until the block ends; raises StoreFull and StoreError."""
        ...
