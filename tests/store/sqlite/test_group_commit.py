"""Group commit on a real database: shared transactions, and the effects of failures."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from relay.core.clock import Clock, SystemClock
from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreMoved, StoreUnavailable
from relay.store.sqlite import driver
from relay.store.sqlite.files import Files
from relay.store.sqlite.group_commit import BATCH_MAX, WAITING_MAX, GroupCommit, Statement
from tests.conftest import NOW_MS, ManualClock


def insert(db: sqlite3.Connection, texts: Sequence[Any]) -> list[int]:
    db.executemany("INSERT INTO t VALUES (?)", [(text,) for text in texts])
    return [len(str(text)) for text in texts]


def insert_elsewhere(db: sqlite3.Connection, texts: Sequence[Any]) -> list[int]:
    return insert(db, texts)


@asynccontextmanager
async def writing(
    folder: Path, *, clock: Clock | None = None
) -> AsyncIterator[tuple[GroupCommit, driver.Connection, list[float]]]:
    commits: list[float] = []
    connection = await driver.open_writer(folder / "t.db")
    await connection.run(lambda db: db.execute("CREATE TABLE IF NOT EXISTS t (x TEXT) STRICT"))
    files = Files(folder / "t.db")
    writer = GroupCommit(
        connection, clock=clock or SystemClock(), committed=commits.append, files=files
    )
    try:
        yield writer, connection, commits
    finally:
        await writer.close()
        files.close()


def stored(folder: Path) -> list[str]:
    with closing(sqlite3.connect(f"file:{folder / 't.db'}?mode=ro", uri=True)) as db:
        return [row[0] for row in db.execute("SELECT x FROM t ORDER BY rowid")]


async def test_concurrent_writes_share_few_commits(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, commits):
        results = await asyncio.gather(*(writer.submit(insert, "x" * n) for n in range(200)))
        assert results == list(range(200))
        assert len(commits) <= 2
        assert len(stored(tmp_path)) == 200


async def test_a_transaction_is_bounded(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, commits):
        await asyncio.gather(*(writer.submit(insert, "x") for _ in range(BATCH_MAX * 3)))
        assert len(commits) >= 3


async def test_a_disk_that_hangs_does_not_fill_the_memory(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        more = WAITING_MAX + BATCH_MAX + 1
        waits = (writer.submit(insert, "x") for _ in range(more))
        results = await asyncio.gather(*waits, return_exceptions=True)
        refused = [result for result in results if isinstance(result, StoreError)]
        assert 0 < len(refused) <= BATCH_MAX + 1
        assert len(stored(tmp_path)) == more - len(refused)


async def test_catch_up_waits_for_the_whole_queue(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, connection, _):
        disk = threading.Event()
        hangs = asyncio.create_task(connection.run(lambda _: disk.wait(60)))
        told: list[int] = []
        writes = [asyncio.create_task(writer.submit(insert, "x", told.append))]
        await asyncio.sleep(0)  # so that the first is taken out of the queue
        writes += [
            asyncio.create_task(writer.submit(insert, "x", told.append)) for _ in range(WAITING_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(StoreError):
            await writer.submit(insert, "one too many")
        caught_up = asyncio.create_task(writer.catch_up())
        done, _ = await asyncio.wait({caught_up}, timeout=0.05)
        assert not done
        disk.set()
        await caught_up
        assert len(told) == len(writes)
        await asyncio.gather(hangs, *writes)


async def test_catch_up_on_a_broken_store_returns_at_once(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        writer.mark_broken(StoreBroken("the store is damaged"))
        await writer.catch_up()
        assert stored(tmp_path) == []


async def test_different_writes_share_a_commit_in_order(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, commits):
        texts = "abcabc"
        writes = (insert, insert, insert_elsewhere) * 2
        pairs = zip(writes, texts, strict=True)
        await asyncio.gather(*(writer.submit(write, text) for write, text in pairs))
        assert stored(tmp_path) == list(texts)
        assert len(commits) <= 2


async def test_a_returned_write_is_on_disk(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):

        async def one(text: str) -> None:
            await writer.submit(insert, text)
            assert text in stored(tmp_path)

        await asyncio.gather(*(one(f"t{number}") for number in range(20)))


async def test_done_is_called_after_the_commit_and_before_the_return(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        seen: list[list[str]] = []
        await writer.submit(insert, "a", lambda _: seen.append(stored(tmp_path)))
        assert seen == [["a"]]


async def test_a_faulty_item_fails_alone(tmp_path: Path) -> None:
    items = ["a", "\ud800", "b", 3.5, b"bytes", "c"]
    async with writing(tmp_path) as (writer, _, _):
        results = await asyncio.gather(
            *(writer.submit(insert, item) for item in items), return_exceptions=True
        )
        # STRICT refuses the bytes; a lone surrogate cannot be bound at all.
        assert [type(result) for result in results] == [
            *(int, StoreUnavailable, int),
            *(int, StoreUnavailable, int),
        ]
        assert stored(tmp_path) == ["a", "b", "3.5", "c"]
        assert writer.broken is None
        assert await writer.submit(insert, "d") == 1


async def test_work_runs_again_after_a_faulty_neighbour(tmp_path: Path) -> None:
    runs: list[str] = []

    def add(db: sqlite3.Connection, text: object) -> int:
        runs.append(str(text))
        return insert(db, [text])[0]

    async with writing(tmp_path) as (writer, _, _):
        results = await asyncio.gather(
            writer.transact(lambda db: add(db, "a")),
            writer.transact(lambda db: add(db, b"bytes")),
            writer.execute("INSERT INTO t VALUES (?)", "b"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [int, StoreUnavailable, type(None)]
        assert (runs.count("a"), stored(tmp_path)) == (2, ["a", "b"])


async def test_a_cancelled_wait_does_not_withdraw_the_write(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        told: list[int] = []
        waiting = asyncio.create_task(writer.submit(insert, "abc", told.append))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await writer.submit(insert, "d")
        assert (told, stored(tmp_path)) == ([3], ["abc", "d"])


async def test_a_full_disk_fails_the_whole_batch_and_passes(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, connection, _):
        pages = await connection.run(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
        await connection.run(
            lambda db: db.execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
        )
        results = await asyncio.gather(
            *(writer.submit(insert, "x" * 5000) for _ in range(20)), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreFull}
        assert stored(tmp_path) == []
        await connection.run(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchall())
        assert await writer.submit(insert, "x" * 5000) == 5000


async def test_another_programs_write_lock_is_a_temporary_error(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, connection, _):
        await connection.run(lambda db: db.execute("PRAGMA busy_timeout = 20").fetchall())
        with closing(sqlite3.connect(tmp_path / "t.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(
                *(writer.submit(insert, "x") for _ in range(3)), return_exceptions=True
            )
            other.execute("ROLLBACK")
        assert {type(result) for result in results} == {StoreUnavailable}
        assert "SQLITE_BUSY" in str(results[0])
        assert await writer.submit(insert, "x") == 1


def fail(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("as SQLite would")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    "name",
    ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_CORRUPT", "SQLITE_READONLY_DBMOVED"],
)
async def test_nothing_is_written_after_an_io_error(tmp_path: Path, name: str) -> None:
    def broken(_: sqlite3.Connection, __: Sequence[object]) -> list[None]:
        raise fail(name)

    async with writing(tmp_path) as (writer, _, _):
        waits = [writer.submit(insert, "a"), writer.submit(broken, None)]
        waits += [writer.submit(insert, "x") for _ in range(BATCH_MAX)]
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(result) for result in results} == {StoreBroken}
        assert name in str(results[0])
        with pytest.raises(StoreBroken):
            await writer.submit(insert, "b")
        assert stored(tmp_path) == []


async def test_an_error_on_a_disk_without_room_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: sqlite3.Connection, __: Sequence[object]) -> list[None]:
        raise fail("SQLITE_IOERR_WRITE")

    async with writing(tmp_path) as (writer, _, _):
        with monkeypatch.context() as patch:
            patch.setattr(Files, "shortage", lambda _: "no room is left")
            with pytest.raises(StoreFull, match=r"no room is left \(SQLITE_IOERR_WRITE\)"):
                await writer.submit(fails, None)
        assert await writer.submit(insert, "x") == 1


async def test_exclusive_work_on_a_broken_store_does_not_run(tmp_path: Path) -> None:
    ran: list[object] = []
    async with writing(tmp_path) as (writer, _, _):
        writer.mark_broken(StoreBroken("the store is damaged"))
        with pytest.raises(StoreBroken, match="is damaged"):
            await writer.run_exclusive(ran.append)
    assert ran == []


async def test_nothing_is_written_after_exclusive_work_that_found_damage(tmp_path: Path) -> None:
    def fails(name: str) -> Any:
        raise fail(name)

    async with writing(tmp_path) as (writer, _, _):
        with pytest.raises(StoreUnavailable, match="SQLITE_BUSY"):
            await writer.run_exclusive(lambda _: fails("SQLITE_BUSY"))
        assert await writer.submit(insert, "a") == 1
        with pytest.raises(StoreBroken, match="SQLITE_CORRUPT"):
            await writer.run_exclusive(lambda _: fails("SQLITE_CORRUPT"))
        with pytest.raises(StoreBroken):
            await writer.submit(insert, "b")
        assert stored(tmp_path) == ["a"]


async def test_a_disk_failure_during_single_writes_stops_the_rest(
    tmp_path: Path,
) -> None:
    def odd(_: sqlite3.Connection, items: Sequence[str]) -> list[None]:
        raise ValueError if len(items) > 1 else fail("SQLITE_IOERR_FSYNC")

    async with writing(tmp_path) as (writer, _, _):
        waits = [writer.submit(insert, "a"), writer.submit(odd, "b"), writer.submit(odd, "c")]
        waits += [writer.submit(insert, f"late{number}") for number in range(5)]
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(result) for result in results[1:]} == {StoreBroken}
        assert stored(tmp_path) == ["a"]


async def test_a_failing_callback_does_not_stop_the_writer(tmp_path: Path) -> None:
    def fails(_: object) -> None:
        raise KeyError("no such sink")

    told: list[object] = []
    loop = asyncio.get_running_loop()
    usual = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(type(context["exception"])))
    async with writing(tmp_path) as (writer, _, _):
        async with asyncio.timeout(10):
            neighbours = await asyncio.gather(
                writer.submit(insert, "a", fails),
                writer.submit(insert, "b"),
                return_exceptions=True,
            )
            assert list(neighbours) == [1, 1]
            assert await writer.submit(insert, "c") == 1
    loop.set_exception_handler(usual)
    assert told == [KeyError]


async def test_a_write_that_fails_after_its_commit_does_not_run_again(tmp_path: Path) -> None:
    def late(db: sqlite3.Connection, texts: Sequence[str]) -> list[int]:
        db.execute("INSERT INTO t SELECT value FROM json_each(?)", (json.dumps(texts),))
        raise MemoryError

    statement: Statement[str, int] = Statement(late)
    async with writing(tmp_path) as (writer, _, _):
        await writer.submit(insert, "before")
        results = await asyncio.gather(
            *(writer.submit(statement, text) for text in "ab"), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreBroken}
        assert stored(tmp_path) == ["before", "a", "b"]


async def test_a_write_that_fails_in_a_restarted_log_runs_again(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        await writer.submit(insert, "before")
        await writer.run_exclusive(
            lambda db: db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
        )
        results = await asyncio.gather(
            *(writer.submit(insert, item) for item in ("a", b"bytes")), return_exceptions=True
        )
        assert [type(result) for result in results] == [int, StoreUnavailable]
        assert stored(tmp_path) == ["before", "a"]


async def test_a_check_that_fails_after_a_commit_makes_nothing_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise MemoryError

    async with writing(tmp_path) as (writer, _, _):
        await writer.submit(insert, "before")
        monkeypatch.setattr("relay.store.sqlite.group_commit.CHECK_INTERVAL_S", 60.0)
        monkeypatch.setattr("relay.store.sqlite.wal.Wal.require", fails)
        results = await asyncio.gather(
            *(writer.submit(insert, text) for text in "ab"), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreBroken}
        assert stored(tmp_path) == ["before", "a", "b"]


async def test_a_checkpoint_that_fails_makes_nothing_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("relay.store.sqlite.files.CHECKPOINT_FRAMES", 1)
    monkeypatch.setattr("relay.store.sqlite.group_commit._checkpoint", fails)
    async with writing(tmp_path) as (writer, _, _):
        told: list[int] = []
        await asyncio.gather(*(writer.submit(insert, "x", told.append) for _ in range(3)))
        assert (told, stored(tmp_path)) == ([1, 1, 1], ["x", "x", "x"])


async def test_a_write_whose_checkpoint_finds_damage_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise fail("SQLITE_CORRUPT")

    monkeypatch.setattr("relay.store.sqlite.files.CHECKPOINT_FRAMES", 1)
    monkeypatch.setattr("relay.store.sqlite.group_commit._checkpoint", fails)
    async with writing(tmp_path) as (writer, _, _):
        told: list[int] = []
        for _ in range(2):
            with pytest.raises(StoreBroken):
                await writer.submit(insert, "x", told.append)
        assert (told, stored(tmp_path)) == ([], ["x"])


async def test_the_time_of_a_commit_is_without_the_checkpoint_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()

    def checkpoint(_: object) -> None:
        clock.ms += 5000

    monkeypatch.setattr("relay.store.sqlite.files.CHECKPOINT_FRAMES", 1)
    monkeypatch.setattr("relay.store.sqlite.group_commit._checkpoint", checkpoint)
    async with writing(tmp_path, clock=clock) as (writer, _, commits):
        await writer.submit(insert, "x")
        assert (commits, clock.ms) == ([0], NOW_MS + 5000)


async def test_exclusive_work_behind_a_commit_checks_all_files_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.store.sqlite.group_commit.CHECK_INTERVAL_S", 60.0)
    started, hangs = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        started.set()
        hangs.wait(60)
        db.execute("INSERT INTO t VALUES ('slow')")

    ran: list[object] = []
    async with writing(tmp_path) as (writer, _, _):
        await writer.submit(insert, "before")
        write = asyncio.create_task(writer.transact(slow))
        await asyncio.to_thread(started.wait, 60)
        exclusive = asyncio.create_task(writer.run_exclusive(ran.append))
        await asyncio.sleep(0)
        (tmp_path / "t.db-shm").rename(tmp_path / "moved")
        hangs.set()
        await write
        with pytest.raises(StoreMoved):
            await exclusive
        assert ran == []


async def test_closing_finishes_the_queue(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        waiting = [asyncio.create_task(writer.submit(insert, f"t{n}")) for n in range(600)]
        await asyncio.sleep(0)
        await writer.close()
        assert len(await asyncio.gather(*waiting)) == 600
    assert len(stored(tmp_path)) == 600


async def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    async with writing(tmp_path) as (writer, _, _):
        await writer.close()
        with pytest.raises(StoreError):
            await writer.submit(insert, "a")
