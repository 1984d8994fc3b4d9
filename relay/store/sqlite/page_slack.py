"""Old copies of rows in the unused middle of pages, which SQLite leaves when it moves rows.

`secure_delete` overwrites removed data in its place, but not the copies that stay behind when rows
move between pages. They are searched in the file itself. A row of the page is then made so large
that it takes all of the unused space, which SQLite clears or uses for that, and small again.

A page belongs to the table whose b-tree leads to it from its root in the schema, which leaves out
overflow, free and pointer-map pages. The shape of a row would tell only until a column is added.
File format: sqlite.org/fileformat2.html, sections 1.5 to 2.1.
"""

import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay.core.errors import StoreBroken
from relay.store.sqlite.driver import sqlite3

CHUNK_PAGES = 256

_PADDED = {
    "events": "headers",
    "attempts": "answer",
    "unreadable": "headers",
    "quarantine": "headers",
    "erasures": "report",
}
"""Tables with text of a sender or a destination, and the column that can be made longer."""

_ROOT = "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?"
_PLACE = "SELECT cid, type FROM pragma_table_info(?) WHERE name = ?"

_TABLE_INTERIOR, _TABLE_LEAF = 0x05, 0x0D
_INTERIOR_HEAD_BYTES = 12
_LAST_CHILD_AT = 8
_HEAD_BYTES = 8
_DEPTH_MAX = 20
"""SQLite's own limit."""

_POINTER_BYTES = 2
_SINGLE_TOLERATED = 24
"""Bytes that may stay of a page's only row: the start of its header, with lengths and numbers."""

_CONTENT = re.compile(rb"[^\0]{5}")
"""More than the four bytes at the start of a freed block."""

_BLOB = 12
_VARINT_MAX = 9


class Column(NamedTuple):
    """A column that can be made longer for a moment, with its place in the row."""

    table: str
    name: str
    place: int
    type: str


class Leaves(NamedTuple):
    """The table of each leaf page: 1 + its place in `columns`, by page from 0; 0 for others."""

    columns: Sequence[Column]
    tables: bytes


class Gap(NamedTuple):
    """An unused part of a page with something in it, and the row that can take its place."""

    column: Column
    row: int
    bytes: int


class _Cell(NamedTuple):
    """A row in a page: its key, its size, its size in this page, and the types of its values."""

    row: int
    payload: int
    local: int
    types: list[int]


def leaves(db: sqlite3.Connection, file: int, page_bytes: int) -> Leaves:
    """Find the leaf pages of the tables in an open file.

    Call it right after a checkpoint of the whole log, and before another write.
    """
    columns = [
        Column(table, name, *db.execute(_PLACE, (table, name)).fetchone())
        for table, name in _PADDED.items()
    ]
    tables = bytearray(os.fstat(file).st_size // page_bytes)
    for number, column in enumerate(columns, 1):
        (root,) = db.execute(_ROOT, (column.table,)).fetchone()
        for page in _leaves_below(root, file, page_bytes):
            if not 0 < page <= len(tables):
                raise StoreBroken(f"the store is damaged (page {page} is missing)")
            tables[page - 1] = number
    return Leaves(columns, bytes(tables))


def _leaves_below(root: int, file: int, page_bytes: int) -> Sequence[int]:
    """Return the numbers, from 1, of a b-tree's leaf pages, which are all at the same depth."""
    level = [root]
    for _ in range(_DEPTH_MAX):
        if _read(file, page_bytes, level[0])[0] == _TABLE_LEAF:
            return level
        pages = (_read(file, page_bytes, number) for number in level)
        level = [child for page in pages for child in _children(page)]
    raise StoreBroken(f"the store is damaged (the tree at page {root} has no end)")


def _read(file: int, page_bytes: int, number: int) -> bytes:
    page = os.pread(file, page_bytes, (number - 1) * page_bytes) if number else b""
    if len(page) < page_bytes or page[0] not in (_TABLE_INTERIOR, _TABLE_LEAF):
        raise StoreBroken(f"the store is damaged (page {number} is not part of its table)")
    return page


def _children(page: bytes) -> Iterator[int]:
    for at in (*_cells_at(page, _INTERIOR_HEAD_BYTES), _LAST_CHILD_AT):
        yield int.from_bytes(page[at : at + 4], "big")


def scan(file: int, page_bytes: int, of: Leaves, first: int) -> list[Gap] | None:
    """Search `CHUNK_PAGES` pages of an open file for gaps, from a page on; None past its end."""
    tables = of.tables[first : first + CHUNK_PAGES]
    if not tables:
        return None
    if not any(tables):
        return []
    chunk = os.pread(file, CHUNK_PAGES * page_bytes, first * page_bytes)
    gaps = (
        _gap(page, of.columns[table - 1])
        for place, table in enumerate(tables)
        if table and (page := chunk[place * page_bytes : (place + 1) * page_bytes])
        # The page may have been freed since the tables were read.
        if page[0] == _TABLE_LEAF
    )
    return [gap for gap in gaps if gap is not None]


def overwrite(db: sqlite3.Connection, gaps: Sequence[Gap]) -> None:
    """Let a row of each page take the unused space for a moment, without changing its content."""
    for gap in gaps:
        table, name, _, kind = gap.column
        row = db.execute(f"SELECT {name} FROM {table} WHERE rowid = ?", (gap.row,)).fetchone()
        if row is None:
            continue
        (value,) = row
        more = " " * gap.bytes if kind == "TEXT" else bytes(gap.bytes)
        update = f"UPDATE {table} SET {name} = ? WHERE rowid = ?"
        db.execute(update, (more if value is None else value + more, gap.row))
        db.execute(update, (value, gap.row))


def _gap(page: bytes, column: Column) -> Gap | None:
    rows = _rows(page)
    start = _HEAD_BYTES + _POINTER_BYTES * rows
    end = int.from_bytes(page[5:7], "big") or len(page)
    tolerated = _SINGLE_TOLERATED if rows == 1 else 0
    if _CONTENT.search(page, start + tolerated, end) is None:
        return None
    free = end - start + page[7] + sum(_freeblocks(page))
    plans = (_plan(cell, column, free, len(page)) for cell in _cells(page))
    return max((plan for plan in plans if plan), key=lambda plan: plan.bytes, default=None)


def _rows(page: bytes) -> int:
    return int.from_bytes(page[3:5], "big")


def _cells_at(page: bytes, head_bytes: int) -> Sequence[int]:
    """Return where the cells of a page begin."""
    # A page that changes while it is read may hold any number.
    count = min(_rows(page), (len(page) - head_bytes) // _POINTER_BYTES)
    return struct.unpack_from(f">{count}H", page, head_bytes)


def _freeblocks(page: bytes) -> Iterator[int]:
    at = int.from_bytes(page[1:3], "big")
    for _ in range(len(page) // 4):
        if not 0 < at <= len(page) - 4:
            return
        yield int.from_bytes(page[at + 2 : at + 4], "big")
        at = int.from_bytes(page[at : at + 2], "big")


def _cells(page: bytes) -> Iterator[_Cell]:
    for start in _cells_at(page, _HEAD_BYTES):
        payload, at = _varint(page, start)
        row, at = _varint(page, at)
        head, types_at = _varint(page, at)
        types = []
        while types_at < at + head <= len(page):
            kind, types_at = _varint(page, types_at)
            types.append(kind)
        yield _Cell(row, payload, _local(payload, len(page)), types)


def _local(payload: int, page_bytes: int) -> int:
    most, least = page_bytes - 35, (page_bytes - 12) * 32 // 255 - 23
    if payload <= most:
        return payload
    part = least + (payload - least) % (page_bytes - 4)
    return part if part <= most else least


def _plan(cell: _Cell, column: Column, free: int, page_bytes: int) -> Gap | None:
    """Return by how much the row has to grow to take all that is free, or all that it may take."""
    if column.place >= len(cell.types):
        # Written before the column was added.
        return None
    kind = cell.types[column.place]
    length = max(0, (kind - _BLOB) // 2)
    room = min(free, page_bytes - 35 - cell.local)
    for more in range(room, max(0, room - 16), -1):
        # The first byte of a length above 127 costs another one, twice.
        types = _size(max(_BLOB, kind) + 2 * more) - _size(kind)
        payload = cell.payload + more + types
        grown = _local(payload, page_bytes) + _size(payload) - cell.local - _size(cell.payload)
        if 0 < grown <= free and length + more:
            return Gap(column, cell.row, more)
    return None


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place after it; all bits of a ninth byte count."""
    value = 0
    for count, byte in enumerate(page[at : at + _VARINT_MAX], 1):
        if count == _VARINT_MAX:
            return value << 8 | byte, at + count
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count
    return value, len(page)


def _size(number: int) -> int:
    """Return the size of a number as SQLite writes it."""
    return max(1, (number.bit_length() + 6) // 7)
