"""Puts a copy in the place of a store, and keeps the old files beside it."""

import asyncio
import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from relay.core.errors import StoreFull, StoreRefused
from relay.store.integrity import Inspection
from relay.store.sqlite import disk, integrity, preflight
from relay.store.sqlite.backup import copy_into
from relay.store.sqlite.driver import reading, sqlite3
from relay.store.sqlite.errors import classify

_COMPANIONS = ("-wal", "-shm")


async def restore(path: Path, copy: Path, *, now_ms: int) -> tuple[Inspection, Path | None]:
    """Return what the restored store holds, and where the files are that were there.

    A copy with faults changes nothing, and is kept nowhere. Raises StoreLocked while a relay has
    the store, StoreFull, and StoreRefused for a copy that cannot be read.
    """
    disk.make_folder(path)
    with disk.lock(path):
        real = disk.real(path)
        _require_usable(real, copy)
        fresh = real.with_name(f"{real.name}.restoring-{secrets.token_hex(8)}")
        try:
            await _read(copy, fresh)
            inspection = await integrity.inspect(fresh)
            if inspection.faults:
                return inspection, None
            return inspection, await asyncio.to_thread(_exchange, real, fresh, _stamp(now_ms))
        finally:
            _remove(fresh)


def _require_usable(real: Path, copy: Path) -> None:
    with suppress(FileNotFoundError):
        if real.samefile(copy):
            raise StoreRefused(f"{copy} is the store itself")
    if (foreign := preflight.foreign_log(copy)) is not None:
        raise StoreRefused(foreign)
    if disk.free_bytes(real) < disk.size_bytes(copy):
        raise StoreFull("too little free space beside the store, which needs the size of the copy")


async def _read(copy: Path, fresh: Path) -> None:
    """Copy by SQLite, so that a log beside the copy is part of it."""

    def copied(db: sqlite3.Connection) -> None:
        # Created here, because SQLite would let others read it.
        fresh.touch(mode=0o600, exist_ok=False)
        copy_into(db, fresh)

    try:
        async with reading(copy) as copier:
            await copier.run(copied)
    except sqlite3.Error as error:
        if isinstance(classify(error), StoreFull):
            raise StoreFull("the disk is full") from None
        raise StoreRefused(f"{copy} cannot be read: {error}") from None


def _remove(fresh: Path) -> None:
    for suffix in ("", *_COMPANIONS):
        Path(f"{fresh}{suffix}").unlink(missing_ok=True)


def _exchange(real: Path, fresh: Path, stamp: str) -> Path | None:
    """Exchange the files; return the new name of the old database, None if there was none.

    Where it is cut off, the old database has two names, with which no relay opens it.
    """
    kept = real.with_name(f"{real.name}.before-{stamp}")
    has_old = real.exists()
    if has_old:
        kept.hardlink_to(real)
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            Path(f"{real}{suffix}").rename(f"{kept}{suffix}")
    with fresh.open("rb") as file:
        os.fsync(file.fileno())
    fresh.rename(real)
    disk.sync_folder(real.parent)
    return kept if has_old else None


def _stamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
