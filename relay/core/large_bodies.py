"""Work on bodies that leaves the event loop where they are large, in every room alike."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 65_536
"""Bodies up to this size are read, checked by rules and rendered within a millisecond or two.

Those of real events are far smaller, and a change of thread would cost them more than the work."""


class BodyWorker:
    """Works on small bodies at once, and on large ones on a thread, one after the other.

    Each thread keeps Python's lock from the event loop for 5 ms at a time, so there is only one.
    Nor does a thread make endless work harmless: templates have a limit on their loops.
    """

    def __init__(self, name: str, *, large_bytes: int = LARGE_BYTES) -> None:
        self.large_bytes = large_bytes
        """Work on more goes to the thread."""
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Return the result of work on this many bytes; on a thread it goes on if cancelled."""
        if size <= self.large_bytes:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
