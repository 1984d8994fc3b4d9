"""Copies of a store: that part of the protocol."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol


class Backups(Protocol):
    """Copies of the whole store as it is at one moment."""

    def clear(self) -> None:
        """Remove copies that a killed relay has left."""
        ...

    def copied(self) -> AbstractAsyncContextManager[Path]:
        """A sound copy, gone when the block ends; raises StoreFull and StoreError."""
        ...
