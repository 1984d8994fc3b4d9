"""A write-ahead log that is removed, replaced, truncated or overwritten under the store."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.errors import StoreBroken, StoreMoved
from relay.store.sqlite import files
from relay.store.sqlite.driver import open_reader, sqlite3
from relay.store.sqlite.files import CHECKPOINT_FRAMES
from relay.store.sqlite.store import SqliteStore
from tests.conftest import ManualClock
from tests.store.conformance import accept, event
from tests.store.places import opened

Spoil = Callable[[Path], None]


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


async def make(path: Path, clock: ManualClock) -> None:
    """A store whose tables are in the database, so that its next log begins short."""
    async with opened(path, clock):
        pass


async def fill(store: SqliteStore, name: str, count: int) -> None:
    await accept(store, *(event(f"{name}-{n}", seed=n) for n in range(count)))


async def write_home(store: SqliteStore) -> None:
    await store._writer.run_exclusive(
        lambda db: db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall(),
    )


def stored(path: Path) -> set[str]:
    """The events in a copy of the files, as a relay would find them after a kill."""
    copy = path.with_name("copy")
    copy.mkdir()
    for suffix in ("", "-wal"):
        if beside(path, suffix).exists():
            shutil.copy(beside(path, suffix), copy)
    with closing(sqlite3.connect(copy / path.name)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return {row[0] for row in db.execute("SELECT id FROM events")}


def _remove(log: Path) -> None:
    log.unlink()


def _rename(log: Path) -> None:
    log.rename(log.with_name("elsewhere"))


def _replace(log: Path) -> None:
    shutil.copy(log, log.with_name("other"))
    log.with_name("other").rename(log)


def _empty(log: Path) -> None:
    os.truncate(log, 0)


def _cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size // 2)


def _cut_a_byte(log: Path) -> None:
    os.truncate(log, log.stat().st_size - 1)


def _zero(log: Path) -> None:
    with log.open("r+b") as file:
        file.write(bytes(log.stat().st_size))


def _zero_the_end(log: Path) -> None:
    with log.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(bytes(5000))


def _empty_and_regrow(log: Path) -> None:
    size = log.stat().st_size
    os.truncate(log, 0)
    os.truncate(log, size)


MOVES = (_remove, _rename, _replace)
DAMAGES = (_empty, _cut, _cut_a_byte, _zero, _zero_the_end, _empty_and_regrow)


@pytest.mark.parametrize("is_anew", [False, True], ids=["first log", "log begun anew"])
@pytest.mark.parametrize("is_fresh", [False, True], ids=["looked before", "looked after"])
@pytest.mark.parametrize("spoil", [*MOVES, *DAMAGES])
async def test_nothing_is_accepted_after_the_log_was_damaged(
    path: Path, clock: ManualClock, spoil: Spoil, *, is_fresh: bool, is_anew: bool
) -> None:
    """Also if the fault occurs between the last check and a commit that overwrites it."""
    await make(path, clock)
    async with opened(path, clock) as store:
        await fill(store, "before", 20)
        if is_anew:
            await write_home(store)
            await fill(store, "more", 300)
        spoil(beside(path, "-wal"))
        if not is_fresh:
            clock.ms += 1000
        for _ in range(2):
            with pytest.raises(StoreBroken, match=r"relay\.db-wal was"):
                await accept(store, event("after"))


@pytest.mark.parametrize("spoil", [_remove, _rename, _replace])
async def test_a_replaced_index_breaks_the_store_too(
    path: Path, clock: ManualClock, spoil: Spoil
) -> None:
    async with opened(path, clock) as store:
        await fill(store, "before", 5)
        spoil(beside(path, "-shm"))
        clock.ms += 1000
        with pytest.raises(StoreMoved, match=r"relay\.db-shm was removed or replaced"):
            await accept(store, event("after"))


@pytest.mark.parametrize("spoil", MOVES)
async def test_closing_saves_acknowledged_events_of_a_moved_log(
    path: Path, clock: ManualClock, spoil: Spoil
) -> None:
    async with opened(path, clock) as store:
        await fill(store, "before", 40)
        spoil(beside(path, "-wal"))
        with pytest.raises(StoreMoved):
            await accept(store, event("after"))
    assert {f"before-{n}" for n in range(40)} <= stored(path)


@pytest.mark.parametrize("spoil", DAMAGES)
async def test_a_damaged_log_is_not_checkpointed(
    path: Path, clock: ManualClock, spoil: Spoil
) -> None:
    await make(path, clock)
    async with opened(path, clock) as store:
        await fill(store, "home", 20)
        await write_home(store)
        await fill(store, "after", 300)
        spoil(beside(path, "-wal"))
        with pytest.raises(StoreBroken):
            await write_home(store)
    assert {f"home-{n}" for n in range(20)} <= stored(path)


async def test_a_long_log_is_checkpointed_and_restarted(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        for number in range(300):
            await fill(store, f"round-{number}", 12)
        assert store._files._wal.frames < 2 * CHECKPOINT_FRAMES
        assert beside(path, "-wal").stat().st_size < 3 * CHECKPOINT_FRAMES * 4096
        assert path.stat().st_size > 1 << 20


async def test_a_log_that_readers_hold_grows_and_shrinks_soundly(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.files.CHECKPOINT_FRAMES", 50)
    sizes = set[int]()
    async with opened(path, clock) as store:
        await store._writer.run_exclusive(
            lambda db: db.execute("PRAGMA journal_size_limit = 400000")
        )
        for number in range(12):
            reader = await open_reader(path)
            await reader.run(lambda db: db.execute("BEGIN").execute("SELECT 1 FROM events"))
            await fill(store, f"held-{number}", 100)
            sizes.add(beside(path, "-wal").stat().st_size)
            await reader.close()
            await fill(store, f"free-{number}", 3)
            await fill(store, f"again-{number}", 3)
            if number % 3 == 2:
                await store._wiper._truncate_log()
            sizes.add(beside(path, "-wal").stat().st_size)
            assert await accept(store, event(f"round-{number}")) == ["accepted"]
    assert min(sizes) <= 32 + 24 + 4096
    assert len(sizes) > 4
    assert len(stored(path)) == 12 * 107


async def test_the_log_that_a_forgotten_reader_holds_is_measured(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_FRAMES", 20)
    await make(path, clock)
    async with opened(path, clock) as store:
        await fill(store, "before", 1)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchall()
            sizes = []
            for number in range(4):
                await fill(store, f"held-{number}", 200)
                sizes.append(store.space().log_bytes)
            assert sizes == sorted(set(sizes))
            assert sizes[-1] > 20 * 4096
            assert sizes[-1] <= beside(path, "-wal").stat().st_size
        await fill(store, "behind", 1)
        await fill(store, "after", 1)
        assert store.space().log_bytes < sizes[0]
