"""Copies that SQLite leaves in unused parts of pages are overwritten, and nothing else is."""

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from relay.core.config_values import Size
from relay.core.errors import StoreBroken
from relay.store.sqlite import page_slack, schema
from relay.store.sqlite.driver import open_writer
from relay.store.sqlite.opening import open_store
from relay.store.sqlite.settings import SqliteSettings
from tests.conftest import NOW_MS, ManualClock
from tests.store.erasing import erase

PAGE = 4096
KEYS = {"events": "seq", "attempts": "rowid", "unreadable": "rowid", "quarantine": "number"}
TABLES = (*KEYS, "erasures")
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
            ("events", (*event, head, body, 0)),
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


def scanned(db: sqlite3.Connection, file: int) -> list[page_slack.Gap]:
    leaves = page_slack.leaves(db, file, PAGE)
    gaps: list[page_slack.Gap] = []
    first = 0
    while (some := page_slack.scan(file, PAGE, leaves, first)) is not None:
        gaps += some
        first += page_slack.CHUNK_PAGES
    return gaps


def content(db: sqlite3.Connection) -> list[list[Any]]:
    return [db.execute(f"SELECT rowid, * FROM {table}").fetchall() for table in KEYS]


def rows_in(file: int, leaves: page_slack.Leaves) -> dict[str, int]:
    """Count the rows in the leaf pages of each table."""
    rows = dict.fromkeys(TABLES, 0)
    for number, table in enumerate(leaves.tables):
        if table:
            head = os.pread(file, 8, number * PAGE)
            assert head[0] == 0x0D
            rows[leaves.columns[table - 1].table] += int.from_bytes(head[3:5], "big")
    return rows


async def test_the_leaves_of_a_table_hold_all_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        counts = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES
        }
        assert rows_in(file, page_slack.leaves(db, file, PAGE)) == counts


async def test_the_leaves_of_a_deep_tree_are_found(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        db.execute(
            "INSERT INTO attempts WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000) "
            "SELECT i, 'crm', 0, 5, 'delivered', 200, '', hex(zeroblob(1000)), NULL FROM n"
        )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        count = db.execute("SELECT count(*) FROM attempts").fetchone()[0]
        assert rows_in(file, page_slack.leaves(db, file, PAGE))["attempts"] == count


async def test_a_damaged_tree_is_reported_as_a_broken_store(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        root = _root(db)
        for damage in (bytes(4), (1 << 20).to_bytes(4, "big"), root.to_bytes(4, "big")):
            with path.open("r+b") as file:
                file.seek((root - 1) * PAGE + 8)  # the last child of an interior page
                file.write(damage)
                file.seek((root - 1) * PAGE + int.from_bytes(_cell(path, root), "big"))
                file.write(damage)
            with reading(path) as opened, pytest.raises(StoreBroken, match="is damaged"):
                page_slack.leaves(db, opened, PAGE)


async def test_a_leaf_beyond_the_file_is_reported_as_a_broken_store(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        root = _root(db)
        with path.open("r+b") as file:
            file.seek((root - 1) * PAGE + 8)  # the last child of an interior page
            file.write((1 << 20).to_bytes(4, "big"))
        with reading(path) as opened, pytest.raises(StoreBroken, match="page 1048576 is missing"):
            page_slack.leaves(db, opened, PAGE)


async def test_a_tree_that_leads_back_to_its_root_is_reported_as_a_broken_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 2)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        root = _root(db)
        with path.open("r+b") as file:
            file.seek((root - 1) * PAGE + 3)  # no cell
            file.write(bytes(2))
            file.seek((root - 1) * PAGE + 8)
            file.write(root.to_bytes(4, "big"))
        with reading(path) as opened, pytest.raises(StoreBroken, match=f"page {root} has no end"):
            page_slack.leaves(db, opened, PAGE)


def _root(db: sqlite3.Connection) -> int:
    """Return the root page of a table of several pages."""
    ((root,),) = db.execute(
        "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = 'attempts'"
    )
    return int(root)


def _cell(path: Path, page: int) -> bytes:
    """Return the place of an interior page's first cell, which begins with a child."""
    return path.read_bytes()[(page - 1) * PAGE + 12 : (page - 1) * PAGE + 14]


async def test_gaps_are_found_in_tables_with_added_columns(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, SEEDS[0])
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        before = scanned(db, file)
        for table in KEYS:
            db.execute(f"ALTER TABLE {table} ADD COLUMN added TEXT")
            db.execute(f"UPDATE {table} SET added = 'x' WHERE rowid % 2")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        after = scanned(db, file)
        assert {gap.column for gap in after} == {gap.column for gap in before}


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_gap_is_overwritten_and_every_row_stays(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "relay.db"
    await worn(path, seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        db.execute("PRAGMA secure_delete = ON")
        before = content(db)
        gaps = scanned(db, file)
        assert gaps
        db.execute("BEGIN")
        page_slack.overwrite(db, gaps)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert scanned(db, file) == []
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
        left += len(_addresses(path).intersection(gone))
        settings = SqliteSettings(path=str(path), min_free=Size.parse("1B"))
        store = await open_store(settings, clock=clock)
        try:
            assert (await erase(store, "nobody@example.com", now_ms=NOW_MS)).wiped
        finally:
            await store.close()
        assert _addresses(path).isdisjoint(gone)
    # Without this, SQLite would have become better, and all of this could go.
    assert left > 0


def _addresses(path: Path) -> set[bytes]:
    return set(re.findall(rb"person\d{5}@example\.com", path.read_bytes()))


async def test_a_gap_whose_row_was_removed_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await worn(path, 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, reading(path) as file:
        gaps = scanned(db, file)
        for table, key in KEYS.items():
            db.execute(f"DELETE FROM {table} WHERE {key} > 0")
        page_slack.overwrite(db, gaps)
        assert content(db) == [[], [], [], []]
