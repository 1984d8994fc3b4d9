"""Wiping of removed data: free pages are given back, and the write-ahead log is truncated.

SQLite overwrites removed data in the database itself (`secure_delete`), but its log keeps written
pages until it restarts, which a reader can delay. `page_slack` covers the copies in moved rows.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreError
from relay.store.sqlite import generation, page_slack, queries, retention
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit
from relay.telemetry import log

T = TypeVar("T")

WIPE_TIMEOUT_S = 5.0
"""Time that an erasure waits for the wiping, which continues afterwards."""

STEP_PAUSE_S = 0.02
"""Pause between two steps, in which acknowledgements use the writer."""

GAPS_PER_STEP = 32
RETRY_S = 1.0
QUICK_TRIES = 50

_LAST = "SELECT coalesce(max(id), 0) FROM erasures WHERE ended_at IS NOT NULL"
_UNWIPED = """
SELECT count(*) FROM erasures
WHERE id > coalesce((SELECT value FROM state WHERE name = 'wiped'), 0)
"""


class Wiper:
    """Wipes on request, in steps between which others write, and retries until it succeeds."""

    def __init__(
        self, path: Path, writer: GroupCommit, reader: Connection, *, clock: Clock
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._file: int | None = None
        self._requested = False
        self._whole_file = False
        self._task: asyncio.Task[bool] | None = None
        self._sampled = log.Sampled(clock)

    def start(self) -> "asyncio.Task[bool]":
        """Start wiping data that is removed by now; the result is whether it is wiped."""
        self._requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def wipe(self) -> bool:
        """Wipe the whole file, and wait for `WIPE_TIMEOUT_S`; True if it is done."""
        self._whole_file = True
        task = self.start()
        done, _ = await asyncio.wait({task}, timeout=WIPE_TIMEOUT_S)
        return bool(done) and not task.cancelled() and task.result()

    def resume(self) -> None:
        """Continue the wiping that an earlier process left unfinished."""
        self._whole_file = True
        self.start()

    async def close(self) -> None:
        """Stop; closing the last connection truncates the log too."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def release(self) -> None:
        """Close the file, only after SQLite has: closing it would drop SQLite's locks."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _run(self) -> bool:
        while self._requested:
            self._requested = False
            try:
                await self._wipe()
                if self._whole_file:
                    self._whole_file = False
                    await self._wipe_whole_file()
            except StoreBroken:
                # The heartbeat fails too, and ends the process.
                return False
            except Exception as error:  # noqa: BLE001  personal data must not stay because of a bug
                if not isinstance(error, StoreError | OSError | sqlite3.Error):
                    self._sampled.line("relay.bug", reason="", level="error", **log.describe(error))
                self._requested = self._whole_file = True
                await asyncio.sleep(RETRY_S)
        return True

    async def _wipe(self) -> None:
        # As many as there are now: others may free pages as fast as these are given back.
        for _ in range(await self._reader.run(retention.steps_of_space)):
            step = await self._reader.run(retention.find_space)
            if not step.rows:
                break
            await self._writer.transact(step.remove)
            await asyncio.sleep(STEP_PAUSE_S)
        await self._truncate_log()

    async def _wipe_whole_file(self) -> None:
        last = await self._reader.run(lambda db: db.execute(_LAST).fetchone()[0])
        if await self._fill_gaps():
            await self._truncate_log()
        await self._writer.execute(queries.REMEMBER, ("wiped", last))

    async def _fill_gaps(self) -> bool:
        """Scan the database once; True if there was something to overwrite."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY)
        file = self._file
        size = await self._reader.run(lambda db: db.execute("PRAGMA page_size").fetchone()[0])
        leaves = await self._on_empty_log(lambda db: page_slack.leaves(db, file, size))
        any_gaps, first = False, 0
        while (
            gaps := await asyncio.to_thread(page_slack.scan, file, size, leaves, first)
        ) is not None:
            for start in range(0, len(gaps), GAPS_PER_STEP):
                step = gaps[start : start + GAPS_PER_STEP]
                await self._writer.transact(partial(page_slack.overwrite, gaps=step))
                await asyncio.sleep(STEP_PAUSE_S)
            any_gaps |= bool(gaps)
            first += page_slack.CHUNK_PAGES
        return any_gaps

    async def _truncate_log(self) -> None:
        await self._on_empty_log(lambda _: True)

    async def _on_empty_log(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Truncate the log once no reader needs it, and run work before another write."""

        def attempt(db: sqlite3.Connection) -> T | None:
            if not _truncate_log(db):
                return None
            result = work(db)
            generation.advance(db)
            return result

        tries = 0
        while (result := await self._writer.run_exclusive(attempt)) is None:
            tries += 1
            await asyncio.sleep(STEP_PAUSE_S if tries < QUICK_TRIES else RETRY_S)
        return result


def is_unfinished(db: sqlite3.Connection) -> bool:
    """Whether an erasure was not followed by a wiping of the whole file."""
    return bool(db.execute(_UNWIPED).fetchone()[0])


def _truncate_log(db: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the log; False if a reader still needs it.

    It does not wait for readers, because writes would wait with it.
    """
    timeout = db.execute("PRAGMA busy_timeout").fetchone()[0]
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {timeout}")
    return not busy
