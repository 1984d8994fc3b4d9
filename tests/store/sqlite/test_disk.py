"""The SQLite store on its disk: full, taken, damaged, gone, crashed."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.config_values import Size
from relay.core.errors import (
    StoreBroken,
    StoreError,
    StoreExposed,
    StoreFull,
    StoreLocked,
    StoreRefused,
    StoreTooNew,
)
from relay.store.sqlite import disk, queries
from relay.store.sqlite.integrity import check, inspect
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import ManualClock
from tests.store.conformance import accept, event, lease, settlement, unreadable
from tests.store.places import opened


def settings(path: Path, min_free: str = "1B") -> SqliteSettings:
    return SqliteSettings(path=str(path), min_free=Size.parse(min_free))


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


async def nothing_is_left(path: Path, threads: int) -> None:
    """No thread and no lock is left: another store can open once the fault is fixed."""
    async with asyncio.timeout(5):
        while threading.active_count() > threads:
            await asyncio.sleep(0.01)
    if path.parent.is_dir():
        disk.lock(path).close()


async def test_a_clean_stop_is_known(path: Path, clock: ManualClock) -> None:
    for _ in range(2):
        async with opened(path, clock) as store:
            assert store.unclean is False


async def test_closing_checkpoints_the_log(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await accept(store, event("a"))
        assert Path(f"{path}-wal").exists()
    assert not Path(f"{path}-wal").exists()


async def test_files_copied_from_a_running_store_hold_all_that_was_acknowledged(
    path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    async with opened(path, clock) as store:
        await accept(store, *(event(f"e{number}") for number in range(50)))
        first = (await lease(store, limit=1)).deliveries[0]
        await store.settle(settlement(first))
        for file in tmp_path.glob("relay.db*"):
            shutil.copy(file, copy)
    async with opened(copy / "relay.db", clock) as store:
        assert store.unclean is True
        assert len((await lease(store)).deliveries) == 49


_ACCEPTS_AND_WAITS = """
import asyncio, sys
from pathlib import Path
from relay.core.clock import SystemClock
from relay.store.sqlite.opening import open_store
from tests.store.conformance import accept, event, lease
from tests.store.sqlite.test_disk import settings

async def main():
    store = await open_store(settings(Path(sys.argv[1])), clock=SystemClock())
    await accept(store, *(event(f"e{number}") for number in range(20)))
    await lease(store, limit=5)
    print("durable", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.servers
async def test_a_killed_process_leaves_everything_due_and_no_lock(
    path: Path, clock: ManualClock
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _ACCEPTS_AND_WAITS, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "durable\n"
            with pytest.raises(StoreLocked, match=r"another relay holds the store .*relay\.db"):
                await open_store(settings(path), clock=clock)
        finally:
            process.send_signal(signal.SIGKILL)
    async with opened(path, clock) as store:
        assert store.unclean is True
        assert len((await lease(store)).deliveries) == 20
        assert (await store.backlogs())["sales"].pending == 20


async def test_a_store_stays_unclean_until_it_was_found_sound(
    path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE state SET value = 0 WHERE name = 'clean'")
    for _ in range(2):
        async with opened(path, clock) as store:
            assert store.unclean is True
    async with opened(path, clock) as store:
        await store.inspect()
    async with opened(path, clock) as store:
        assert store.unclean is False


async def test_a_second_open_is_refused_and_changes_nothing(path: Path, clock: ManualClock) -> None:
    threads = threading.active_count()
    async with opened(path, clock) as store:
        with pytest.raises(StoreLocked):
            await open_store(settings(path), clock=clock)
        assert await accept(store, event("a")) == ["accepted"]
    await nothing_is_left(path, threads)


async def test_a_second_name_of_the_same_file_is_the_same_store(
    path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    async with opened(path, clock):
        link = tmp_path / "link.db"
        link.symlink_to(path)
        with pytest.raises(StoreLocked):
            await open_store(settings(link), clock=clock)


async def test_a_store_with_a_hard_link_is_refused_by_both_names(
    path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "relay.db"
    other.parent.mkdir()
    async with opened(path, clock) as store:
        await accept(store, event("a"))
        os.link(path, other)
        with pytest.raises(StoreExposed, match=r"other/relay\.db has 2 hard links"):
            await open_store(settings(other), clock=clock)
        assert await accept(store, event("b")) == ["accepted"]
    threads = threading.active_count()
    with pytest.raises(StoreExposed, match=r"-samefile .*relay\.db` and remove the others, then"):
        await open_store(settings(path), clock=clock)
    await nothing_is_left(path, threads)
    assert any("hard links" in fault for fault in (await inspect(path)).faults)
    other.unlink()
    async with opened(path, clock):
        assert (await inspect(path)).faults == ()


async def test_a_log_with_a_hard_link_is_refused(
    path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    async with opened(path, clock) as store:
        await accept(store, event("a"))
        shutil.copytree(tmp_path, tmp_path / "killed")
    log = tmp_path / "killed" / "relay.db-wal"
    os.link(log, tmp_path / "kept")
    with pytest.raises(StoreExposed, match=r"relay\.db-wal has 2 hard links"):
        await open_store(settings(tmp_path / "killed" / "relay.db"), clock=clock)


async def test_files_beside_the_store_are_beside_its_real_file(
    path: Path, clock: ManualClock, tmp_path: Path
) -> None:
    link = tmp_path / "etc" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    async with opened(link, clock) as store:
        await accept(store, *(event(f"e{number}") for number in range(50)))
        assert list(link.parent.iterdir()) == [link]
        assert disk.size_bytes(link) == disk.size_bytes(path) > path.stat().st_size
        assert store.path == path
        Path(f"{path}-wal").unlink()
        with pytest.raises(StoreBroken, match=r"relay\.db-wal was removed"):
            await accept(store, event("after"))


async def test_a_newer_schema_is_refused_and_nothing_changes(
    path: Path, clock: ManualClock
) -> None:
    async with opened(path, clock):
        pass
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO migrations VALUES (99, 'later.sql', 'x', 1)")
    before, threads = content(path), threading.active_count()
    with pytest.raises(StoreTooNew, match=r"relay\.db: its schema is number 99"):
        await open_store(settings(path), clock=clock)
    assert content(path) == before
    await nothing_is_left(path, threads)


def _no_database(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look like one" * 100)


def _a_folder(path: Path) -> None:
    path.mkdir()


def _another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE customers (x)")


def _a_cut_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE migrations (number)")
    os.truncate(path, 700)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_no_database, StoreRefused),
        (_a_folder, StoreRefused),
        (_another_program, StoreBroken),
        (_a_cut_file, StoreBroken),
    ],
)
async def test_a_file_that_is_not_a_store_is_refused_with_its_name(
    path: Path, clock: ManualClock, spoil: Callable[[Path], None], error: type[StoreError]
) -> None:
    spoil(path)
    threads = threading.active_count()
    with pytest.raises(error) as refused:
        await open_store(settings(path), clock=clock)
    assert "relay.db" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    await nothing_is_left(path, threads)


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("in the way")
    threads = threading.active_count()
    for place in (tmp_path / "file" / "relay.db", tmp_path / "file" / "more" / "relay.db"):
        with pytest.raises(StoreRefused, match=r"cannot be opened: .*/file is not a folder"):
            await open_store(settings(place), clock=clock)
        await nothing_is_left(place, threads)


async def test_circular_links_are_refused_with_the_path(path: Path, clock: ManualClock) -> None:
    path.symlink_to(path)
    with pytest.raises(StoreRefused, match=r"relay\.db cannot be opened: .*symbolic links"):
        await open_store(settings(path), clock=clock)


@pytest.mark.servers
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
async def test_a_folder_without_permission_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(StoreRefused, match="the user nobody may not"):
            await open_store(settings(closed / "relay.db"), clock=clock)
    finally:
        os.seteuid(0)
    await nothing_is_left(closed / "relay.db", threading.active_count())


async def test_below_the_floor_only_outcomes_are_written(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, clock) as store:
        await accept(store, event("a"))
        (delivery,) = (await lease(store)).deliveries
        monkeypatch.setattr(disk, "free_bytes", lambda _: 0)
        clock.ms += 1000
        for refused in (
            store.accept(event("b"), [], lambda _: None),
            store.keep(unreadable(), lambda _: None),
            store.probe(size=1024),
        ):
            with pytest.raises(StoreFull, match="min_free"):
                await refused
        await store.settle(settlement(delivery))
        assert (await store.backlogs())["sales"].pending == 0
        monkeypatch.undo()
        clock.ms += 1000
        assert await accept(store, event("b")) == ["accepted"]


async def test_free_space_is_measured_at_most_ten_times_a_second(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []

    def counted(place: Path) -> int:
        measured.append(place)
        return 1 << 40

    async with opened(path, clock) as store:
        monkeypatch.setattr(disk, "free_bytes", counted)
        clock.ms += 1000
        await accept(store, *(event(f"e{number}") for number in range(50)))
        assert len(measured) == 1


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_whose_file_is_gone_accepts_nothing(
    path: Path, clock: ManualClock, *, replaced: bool
) -> None:
    async with opened(path, clock) as store:
        await accept(store, event("a"))
        path.unlink()
        if replaced:
            path.touch()
        clock.ms += 1000
        with pytest.raises(StoreBroken, match="removed or replaced"):
            await store.accept(event("b"), [], lambda _: None)


async def test_a_folder_that_is_gone_is_a_broken_store(tmp_path: Path) -> None:
    with pytest.raises(StoreBroken, match="cannot be read"):
        disk.free_bytes(tmp_path / "gone" / "relay.db")


async def test_check_accepts_a_sound_store(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await accept(store, *(event(f"e{number}") for number in range(100)))
        assert await check(path) == ()


async def test_check_finds_damage(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await accept(store, *(event(f"e{number}", seed=number) for number in range(200)))
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 12] = bytes(4096 * 9)
    path.write_bytes(content)
    assert await check(path) != ()


async def test_check_finds_a_delivery_without_its_event(path: Path, clock: ManualClock) -> None:
    async with opened(path, clock) as store:
        await accept(store, event("a"))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM events")
    assert len(await check(path)) == 1


async def test_check_reports_a_missing_file(path: Path) -> None:
    with pytest.raises(StoreBroken, match="cannot be opened"):
        await check(path)


async def test_a_check_that_is_cancelled_ends_at_once(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT count(*) FROM n"
    begun = threading.Event()

    def faults(db: sqlite3.Connection) -> tuple[str, ...]:
        begun.set()
        return (str(db.execute(endless).fetchone()),)

    async with opened(path, clock) as store:
        monkeypatch.setattr(queries, "faults", faults)
        checking = asyncio.create_task(store.inspect())
        await asyncio.to_thread(begun.wait, 10)
        await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)
        assert checking.cancelled()


async def test_a_full_disk_does_not_keep_the_store_from_closing(
    path: Path, clock: ManualClock
) -> None:
    store = await open_store(settings(path), clock=clock)
    pages = "PRAGMA max_page_count = 1"
    await store._writer._connection.run(lambda db: db.execute(pages).fetchall())
    await store.close()
    await nothing_is_left(path, threading.active_count())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("36 35 0:30 / {folder} rw - nfs4 server:/x rw", "nfs4"),
        ("36 35 0:30 / {folder} rw - fuse.sshfs host:/x rw", "fuse.sshfs"),
        ("36 35 0:30 / {folder} rw - ext4 /dev/sda rw", None),
    ],
)
def test_a_network_file_system_is_detected_at_a_path_with_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, kind: str | None
) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    root = "1 0 8:1 / / rw - ext4 /dev/root rw\n"
    mounts = root + line.format(folder=str(folder).replace(" ", r"\040"))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: mounts)
    assert disk.network_file_system(folder / "relay.db") == kind


def test_the_size_counts_the_log_and_survives_a_file_that_goes(tmp_path: Path) -> None:
    (tmp_path / "relay.db").write_bytes(bytes(10))
    (tmp_path / "relay.db-wal").write_bytes(bytes(5))
    assert disk.size_bytes(tmp_path / "relay.db") == 15


async def test_a_lock_can_be_inspected_without_taking_it(path: Path, clock: ManualClock) -> None:
    assert disk.is_free(path)
    async with opened(path, clock):
        assert not disk.is_free(path)
        assert not disk.is_free(path)
    assert disk.is_free(path)
    disk.lock(path).close()


def test_an_unreadable_lock_counts_as_taken(tmp_path: Path) -> None:
    assert not disk.is_free(tmp_path / ("x" * 300))
