"""Copies that SQLite leaves in unused parts of pages are overwritten, and nothing else is."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay.core.config_values import Size
from relay.store import StoreSettings
from relay.store.sqlite import page_slack, schema
from relay.store.sqlite.driver import open_writer
from relay.store.sqlite.store import open_store
from tests.conftest import NOW_MS, ManualClock

PAGE = 4096
KEYS = {"events": "seq", "attempts": "rowid", "unreadable": "rowid", "quarantine": "number"}
SEEDS = (14, 21, 37)


def address(number: int) -> str:
    return f"person{number:05}@example.com"


async def worn(path: Path, seed: int) -> list[bytes]:
    """Make a store with fragmented tables; return the addresses removed from it."""
    connection = await open_writer(path)
    try:
        await connection.run(lambda db: schema.migrate(db, now_ms=NOW_MS))
        return await connection.run(lambda db: _wear(db, Random(seed)))
    finally:
        await connection.close()


def _wear(db: sqlite3.Connection, random: Random) -> list[bytes]:
    db.execute("BEGIN")
    for number in range(500):
        body = (address(number) + ",").encode() * (
            random.choice([200, 900, 1200, 3000, 6000]) // 20
        )
        head = b"host: relay\r\n" * random.choice([5, 20])
        event = (number + 1, "main", f"evt{number}", "lead.captured", None, NOW_MS, b"d" * 32)
        answer = address(number) * random.choice([1, 20, 100])
        attempt = (number + 1, "crm", NOW_MS, 5, "delivered", 200, "", answer, None)
        request = ("main", random.randbytes(32), NOW_MS, "odd", head, body)
        for table, row in (
            ("events", (*event, head, body)),
            ("attempts", attempt),
            ("unreadable", request),
            ("quarantine", (number + 1, "main", NOW_MS, len(body), b"t=1,v1=2", head, body)),
        ):
            db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
    db.execute("COMMIT")
    order = random.sample(range(500), 500)
    db.execute("BEGIN")
    for number in order[:300]:
        for table, key in KEYS.items():
            db.execute(f"DELETE FROM {table} WHERE {key} = ?", (number + 1,))
    for number in order[300:450]:
        for sql in (
            "UPDATE events SET body = NULL, headers = NULL WHERE seq = ?",
            "UPDATE attempts SET answer = '' WHERE rowid = ?",
            "UPDATE unreadable SET body = NULL, headers = NULL WHERE rowid = ?",
            "DELETE FROM quarantine WHERE number = ?",
        ):
            db.execute(sql, (number + 1,))
    db.execute("COMMIT")
    return [address(number).encode() for number in order[:450]]


@contextmanager
def reading(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def scanned(file: int) -> list[page_slack.Gap]:
    found: list[page_slack.Gap] = []
    first = 1
    while (some := page_slack.scan(file, PAGE, first)) is not None:
        found += some
        first += page_slack.CHUNK_PAGES
    return found


def content(db: sqlite3.Connection) -> list[list[Any]]:
    return [db.execute(f"SELECT rowid, * FROM {table}").fetchall() for table in KEYS]


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_gap_is_overwritten_and_every_row_stays(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "relay.db"
    await worn(path, seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        db.execute("PRAGMA secure_delete = ON")
        before = content(db)
        found = scanned(file)
        assert found
        db.execute("BEGIN")
        page_slack.overwrite(db, found)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert scanned(file) == []
        assert content(db) == before
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_an_erasure_wipes_old_copies_of_other_persons_too(
    tmp_path: Path, clock: ManualClock
) -> None:
    left = 0
    for seed in SEEDS:
        path = tmp_path / str(seed) / "relay.db"
        path.parent.mkdir()
        gone = await worn(path, seed)
        left += sum(each in path.read_bytes() for each in gone)
        settings = StoreSettings(path=str(path), min_free=Size.parse("1B"))
        store = await open_store(settings, clock=clock)
        try:
            assert (await store.personal_data.erase("nobody@example.com", now_ms=NOW_MS)).wiped
        finally:
            await store.close()
        assert [each for each in gone if each in path.read_bytes()] == []
    # Without this, SQLite would have become better, and all of this could go.
    assert left > 0


async def test_a_gap_whose_row_is_gone_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        found = scanned(file)
        for table, key in KEYS.items():
            db.execute(f"DELETE FROM {table} WHERE {key} > 0")
        page_slack.overwrite(db, found)
        assert content(db) == [[], [], [], []]
