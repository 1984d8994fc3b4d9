"""A database beside a log: its own one, as any kill leaves it, or another's."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.config_values import Size
from relay.core.errors import StoreRefused
from relay.store.sqlite import disk, engine, files, generation, restore
from relay.store.sqlite.driver import open_reader, sqlite3
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.preflight import foreign_log
from relay.store.sqlite.settings import SqliteSettings
from relay.store.sqlite.store import SqliteStore
from tests.conftest import NOW_MS, ManualClock
from tests.store.conformance import accept, event

HEADER = 32
FRAME = 24 + 4096


@pytest.fixture(autouse=True)
def _logs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CHECKPOINT_FRAMES", 20)


async def open_relay(path: Path, clock: ManualClock) -> SqliteStore:
    return await open_store(SqliteSettings(path=str(path), min_free=Size.parse("0B")), clock=clock)


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


async def fill(store: SqliteStore, name: str, count: int = 1) -> None:
    await accept(store, *(event(f"{name}-{n}", seed=n) for n in range(count)))


async def fill_logs(store: SqliteStore, name: str, logs: int) -> None:
    """Accept events until this many logs have begun."""
    salts, number = set[bytes](), 0
    while len(salts) <= logs:
        await fill(store, f"{name}-{number}")
        salts.add(log_of(store.path).read_bytes()[16:24])
        number += 1


def killed(path: Path, folder: str) -> Path:
    """The files as a kill would leave them now."""
    copy = path.with_name(folder) / "relay.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    shutil.copy(log_of(path), log_of(copy))
    return copy


def pair(database: Path, log: Path) -> Path:
    """A raw copy of a database that is put beside a log."""
    folder = database.parent / f"pair-{log.parent.name}"
    folder.mkdir()
    shutil.copy(database, folder / "relay.db")
    shutil.copy(log_of(log), folder / "relay.db-wal")
    return folder / "relay.db"


async def refused(path: Path, clock: ManualClock) -> None:
    """Neither file may change at a start that is refused."""
    before = [file.read_bytes() for file in (path, log_of(path))]
    assert "is the log of another database, or of this one at another time" in (
        foreign_log(path) or ""
    )
    with pytest.raises(StoreRefused, match="move the -wal and the -shm away"):
        await open_relay(path, clock)
    assert [file.read_bytes() for file in (path, log_of(path))] == before


@pytest.mark.parametrize("logs", [2, 5])
async def test_a_raw_copy_beside_a_later_log_of_its_own_store_is_refused(
    path: Path, store: SqliteStore, clock: ManualClock, logs: int
) -> None:
    await fill_logs(store, "before", 2)
    earlier = killed(path, "earlier")
    await fill_logs(store, "after", logs)
    await refused(pair(earlier, killed(path, "later")), clock)


async def test_a_log_from_before_a_raw_copy_of_its_own_store_is_refused(
    path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    await fill_logs(store, "before", 2)
    earlier = killed(path, "earlier")
    await fill_logs(store, "after", 2)
    await refused(pair(killed(path, "later"), earlier), clock)


async def test_a_raw_copy_beside_the_log_of_another_store_is_refused(
    tmp_path: Path, path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    other = await open_relay(tmp_path / "other.db", clock)
    for each in (store, other):
        await fill_logs(each, "event", 2)
    log = killed(other.path, "another")
    await other.close()
    await refused(pair(killed(path, "this"), log), clock)


async def test_a_log_of_the_run_before_a_clean_end_is_refused_beside_what_came_after(
    path: Path, clock: ManualClock
) -> None:
    first = await open_relay(path, clock)
    await fill(first, "first")
    log = killed(path, "first")
    await first.close()
    second = await open_relay(path, clock)
    await fill_logs(second, "second", 2)
    database = killed(path, "second")
    await second.close()
    await refused(pair(database, log), clock)


async def test_what_a_kill_leaves_at_any_moment_is_taken(path: Path, store: SqliteStore) -> None:
    """Also with a log that a reader keeps from beginning anew, and is written home in part."""
    reader = None
    for number in range(120):
        await fill(store, f"event-{number}")
        if number % 40 == 10:
            reader = await open_reader(path)
            await reader.run(lambda db: db.execute("BEGIN").execute("SELECT 1 FROM events"))
        elif number % 40 == 35 and reader is not None:
            await reader.close()
        assert foreign_log(killed(path, f"kill-{number}")) is None


async def test_a_log_that_a_reader_holds_grows_by_its_events_alone(
    path: Path, store: SqliteStore
) -> None:
    await fill_logs(store, "event", 1)
    reader = await open_reader(path)
    await reader.run(lambda db: db.execute("BEGIN").execute("SELECT 1 FROM events"))
    await fill(store, "held", 40)
    before = await number(store)
    for count in range(5):
        await fill(store, f"late-{count}")
    assert await number(store) == before
    await reader.close()
    await fill_logs(store, "free", 2)
    assert await number(store) > before


async def number(store: SqliteStore) -> int:
    ((value,),) = await store._writer.run_exclusive(
        lambda db: db.execute("PRAGMA user_version").fetchall()
    )
    return int(value)


async def test_a_log_that_was_cut_off_in_the_middle_is_taken(
    path: Path, store: SqliteStore
) -> None:
    await fill_logs(store, "event", 3)
    await fill(store, "last", 3)
    copy = killed(path, "cut")
    content = log_of(copy).read_bytes()
    for length in range(0, min(len(content), 6 * FRAME), 1000):
        log_of(copy).write_bytes(content[:length])
        assert foreign_log(copy) is None
        log_of(copy).write_bytes(content[:length] + bytes(len(content) - length))
        assert foreign_log(copy) is None


async def test_a_copy_that_was_not_committed_counts_for_nothing(
    path: Path, store: SqliteStore
) -> None:
    await fill_logs(store, "before", 2)
    earlier = killed(path, "earlier")
    await fill_logs(store, "after", 4)
    both = pair(earlier, killed(path, "later"))
    assert foreign_log(both) is not None
    log_of(both).write_bytes(log_of(both).read_bytes()[: HEADER + FRAME - 1])
    assert foreign_log(both) is None


async def test_a_log_with_another_page_size_is_refused(
    tmp_path: Path, path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    await fill_logs(store, "event", 1)
    other = tmp_path / "odd" / "other.db"
    other.parent.mkdir()
    with closing(sqlite3.connect(other)) as db:
        db.executescript("PRAGMA page_size = 512; PRAGMA journal_mode = WAL; CREATE TABLE t (x)")
        assert log_of(other).stat().st_size > 0
        await refused(pair(killed(path, "this"), other), clock)


async def test_a_long_log_is_not_judged(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read it all would hold up the start for longer than the check is worth."""
    await fill_logs(store, "before", 2)
    earlier = killed(path, "earlier")
    await fill_logs(store, "after", 2)
    both = pair(killed(path, "later"), earlier)
    assert foreign_log(both) is not None
    monkeypatch.setattr(generation, "_FRAMES_MAX", 1)
    assert foreign_log(both) is None


@pytest.mark.parametrize("of_another_program", [0, -1])
async def test_a_store_without_a_number_is_taken_with_its_log_and_marked(
    path: Path, clock: ManualClock, of_another_program: int
) -> None:
    """Older relays write none, and another program may have written what is none."""
    await (await open_relay(path, clock)).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {of_another_program}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        db.executescript("CREATE TABLE other (x); DROP TABLE other")
        assert log_of(path).stat().st_size > 0
        copy = killed(path, "older")
    for number in range(2):
        store = await open_relay(copy, clock)
        await fill(store, "event")
        again = killed(copy, f"killed-{number}")
        await store.close()
        assert foreign_log(again) is None
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] > 1


async def test_a_log_is_refused_beside_a_store_that_was_made_from_a_backup_of_its_own(
    tmp_path: Path, path: Path, store: SqliteStore, clock: ManualClock
) -> None:
    await fill_logs(store, "event", 2)
    target = tmp_path / "restored" / "relay.db"
    async with store.backups.copied() as copy:
        await restore.restore(target, copy, now_ms=NOW_MS)
    restored = await open_relay(target, clock)
    await fill_logs(restored, "event", 2)
    database = killed(target, "new")
    await restored.close()
    await refused(pair(database, killed(path, "old")), clock)


async def test_neither_a_restore_nor_a_check_reads_a_file_beside_a_foreign_log(
    path: Path, store: SqliteStore, tmp_path: Path
) -> None:
    await fill_logs(store, "before", 2)
    earlier = killed(path, "earlier")
    await fill_logs(store, "after", 2)
    both = pair(earlier, killed(path, "later"))
    with pytest.raises(StoreRefused, match="is the log of another database"):
        await restore.restore(tmp_path / "target.db", both, now_ms=NOW_MS)
    inspection = await engine.inspect(SqliteSettings(path=str(both)))
    assert inspection.faults == (foreign_log(both),)
    assert inspection.size_bytes == disk.size_bytes(both)


async def test_a_log_that_begins_while_it_is_read_is_no_finding(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`relay check-config` looks at the store of a running relay."""
    await fill_logs(store, "event", 1)
    copy = killed(path, "read")

    def begin_another(*_: object) -> bool:
        content = bytearray(log_of(copy).read_bytes())
        content[16:24] = bytes(8)
        log_of(copy).write_bytes(content)
        return False

    monkeypatch.setattr(generation, "belong_together", begin_another)
    assert foreign_log(copy) is None
