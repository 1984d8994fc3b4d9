"""What was removed leaves the files: free pages are given back, the write-ahead log is emptied.

SQLite overwrites what it removes in the database itself (`secure_delete`), but its log keeps what
was written until it is begun anew, which a reader can put off; and see `gaps`.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from relay.core.errors import StoreBroken, StoreError
from relay.store.sqlite import page_slack, queries, retention
from relay.store.sqlite.driver import Connection, sqlite3
from relay.store.sqlite.group_commit import GroupCommit

PATIENCE_S = 5.0
"""Whoever waits is answered after that; the work goes on."""

PAUSE_S = 0.02
"""Between two steps, so that acknowledgements find the writer free."""

GAPS_PER_STEP = 32
AGAIN_S = 1.0
QUICK_TRIES = 50

_LAST = "SELECT coalesce(max(id), 0) FROM erasures WHERE ended_at IS NOT NULL"
_UNWIPED = """
SELECT count(*) FROM erasures
WHERE id > coalesce((SELECT value FROM state WHERE name = 'wiped'), 0)
"""


class Wiper:
    """Wipes when asked to, in steps between which others write; goes on until it has succeeded."""

    def __init__(self, path: Path, writer: GroupCommit, reader: Connection) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._file: int | None = None
        self._wanted = False
        self._wholly = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """Have the files wiped of what is removed by now."""
        self._wanted = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def wipe(self) -> bool:
        """Have the whole file wiped, and wait a little for it; whether it is done."""
        self._wholly = True
        task = self.start()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        return task.done() and self._writer.broken is None

    async def resume(self) -> None:
        """Take up what a relay before this one has not finished."""
        if await self._reader.run(lambda db: db.execute(_UNWIPED).fetchone()[0]):
            self._wholly = True
            self.start()

    async def close(self) -> None:
        """Leave off; closing the last connection empties the log as well."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def release(self) -> None:
        """Let go of the file; only once SQLite has, because that would drop its locks on it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._wipe()
                if self._wholly:
                    self._wholly = False
                    await self._wipe_wholly()
            except StoreBroken:
                # The heartbeat finds it as well, and ends the process.
                return
            except (StoreError, OSError, sqlite3.Error):
                self._wanted = self._wholly = True
                await asyncio.sleep(AGAIN_S)

    async def _wipe(self) -> None:
        while (step := await self._reader.run(retention.find_space)).rows:
            await self._writer.submit(retention.remove, step)
            await asyncio.sleep(PAUSE_S)
        await self._empty_log()

    async def _wipe_wholly(self) -> None:
        last = await self._reader.run(lambda db: db.execute(_LAST).fetchone()[0])
        if await self._fill_gaps():
            await self._empty_log()
        await self._writer.submit(queries.remember, ("wiped", last))

    async def _fill_gaps(self) -> bool:
        """Look through the database once; whether there was something to overwrite."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY)
        size = await self._reader.run(lambda db: db.execute("PRAGMA page_size").fetchone()[0])
        any_found, first = False, 1
        while (
            found := await asyncio.to_thread(page_slack.scan, self._file, size, first)
        ) is not None:
            for start in range(0, len(found), GAPS_PER_STEP):
                some = found[start : start + GAPS_PER_STEP]
                await asyncio.gather(
                    *(self._writer.submit(page_slack.overwrite, each) for each in some)
                )
                await asyncio.sleep(PAUSE_S)
            any_found |= bool(found)
            first += page_slack.CHUNK_PAGES
        return any_found

    async def _empty_log(self) -> None:
        tries = 0
        while not await self._writer.apart(_empty_log):
            tries += 1
            await asyncio.sleep(PAUSE_S if tries < QUICK_TRIES else AGAIN_S)


def _empty_log(db: sqlite3.Connection) -> bool:
    """Write the log home and cut it off; False where a reader still needs it.

    Nobody is waited for: whoever wants to write would wait as well.
    """
    patience = db.execute("PRAGMA busy_timeout").fetchone()[0]
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience}")
    return not busy
