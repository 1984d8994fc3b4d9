"""Settings that durability depends on, read from the connections."""

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import StoreBroken, StoreError
from relay.store.sqlite import driver
from relay.store.sqlite.errors import classify
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import ManualClock


async def pragma(connection: driver.Connection, name: str) -> Any:
    return await connection.run(lambda db: db.execute(f"PRAGMA {name}").fetchone()[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("synchronous", 2),
        ("journal_mode", "wal"),
        ("secure_delete", 1),
        ("foreign_keys", 1),
        ("auto_vacuum", 2),
        ("query_only", 0),
    ],
)
async def test_the_writer_is_durable(tmp_path: Path, name: str, value: object) -> None:
    connection = await driver.open_writer(tmp_path / "t.db")
    try:
        assert await pragma(connection, name) == value
    finally:
        await connection.close()


async def test_a_reader_neither_writes_nor_checkpoints(tmp_path: Path) -> None:
    writer = await driver.open_writer(tmp_path / "t.db")
    try:
        await writer.run(lambda db: db.execute("CREATE TABLE t (x)"))
        reader = await driver.open_reader(tmp_path / "t.db")
        try:
            assert await pragma(reader, "query_only") == 1
            assert await pragma(reader, "wal_autocheckpoint") == 0
            with pytest.raises(sqlite3.OperationalError):
                await reader.run(lambda db: db.execute("INSERT INTO t VALUES (1)"))
        finally:
            await reader.close()
    finally:
        await writer.close()


async def test_a_failed_query_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "t.db").touch()
    async with driver.reading(tmp_path / "t.db") as reader:
        with pytest.raises(StoreError, match="the store cannot be read: no such table: t"):
            await reader.read(lambda db: db.execute("SELECT * FROM t"))


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("SQLITE_IOERR_READ", "cannot be read"),
        ("SQLITE_IOERR_SHORT_READ", "cannot be read"),
        ("SQLITE_IOERR_FSYNC", "cannot be written"),
        ("SQLITE_READONLY_DBMOVED", "cannot be written"),
        ("SQLITE_IOERR_SHMMAP", "cannot be used"),
        ("SQLITE_CORRUPT_INDEX", "is damaged"),
    ],
)
def test_a_broken_store_is_named_by_what_failed(code: str, state: str) -> None:
    error = sqlite3.OperationalError("as SQLite would")
    error.sqlite_errorname = code
    found = classify(error)
    assert isinstance(found, StoreBroken)
    assert str(found) == f"the store {state} ({code})"


async def test_a_store_without_its_erasures_cannot_be_opened(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = SqliteSettings(path=str(tmp_path / "relay.db"))
    await (await open_store(settings, clock=clock)).close()
    with closing(sqlite3.connect(settings.path)) as db:
        db.execute("DROP TABLE erasures")
    with pytest.raises(StoreBroken, match="cannot be opened: no such table: erasures"):
        await open_store(settings, clock=clock)


async def test_a_reader_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        await driver.open_reader(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


async def test_a_path_with_odd_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "100% of?mode=ro#é.db"
    connection = await driver.open_writer(path)
    await connection.close()
    assert path.exists()


async def test_the_stores_files_are_their_owners_only(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "new" / "folder" / "relay.db"
    store = await open_store(SqliteSettings(path=str(path)), clock=clock)
    try:
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert {modes[name] for name in ("relay.db", "relay.db-wal", "relay.db-shm")} == {0o600}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("version", "faulty"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 46, 1), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_the_versions_with_the_wal_reset_fault_are_known(
    version: tuple[int, int, int], *, faulty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.sqlite3, "sqlite_version_info", version)
    assert driver.has_wal_reset_fault() is faulty
