"""What SQLite leaves in the unused middle of a page when it moves rows to another page.

`secure_delete` overwrites what is removed where it stood, and not the copies that stay behind when
rows are moved between pages. They are found in the file itself; a row of the page is then made so
large that it takes all of the unused space, which SQLite clears or uses up for that, and small
again. The file's format: sqlite.org/fileformat2.html, sections 1.6 and 2.1.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay.store.sqlite.driver import sqlite3

CHUNK_PAGES = 256

_TABLE_LEAF = 0x0D
_HEAD_BYTES = 8
_POINTER_BYTES = 2
_SINGLE_TOLERATED = 24
"""Of a page's only row the head may stay behind, which holds lengths and numbers."""

_CONTENT = re.compile(rb"[^\0]{5}")
"""What is more than the four bytes with which a block that is free now and then begins."""

_TEXT, _BLOB = 13, 12
_VARINT_MAX = 9


class _Column(NamedTuple):
    """A column that can be made longer for a moment, by its place in the row."""

    table: str
    name: str
    number: int


class Gap(NamedTuple):
    """An unused part of a page with something in it, and the row that can take its place."""

    page: int
    column: _Column
    row: int
    bytes: int


class _Cell(NamedTuple):
    """A row as it lies in a page: its key, the bytes of it there, and the types of its values."""

    row: int
    payload: int
    local: int
    types: list[int]


def scan(file: int, page_bytes: int, first: int) -> list[Gap] | None:
    """Look through `CHUNK_PAGES` pages of an open file; None past its end.

    The first page of all, which holds the schema, is none of ours.
    """
    chunk = os.pread(file, CHUNK_PAGES * page_bytes, first * page_bytes)
    if not chunk:
        return None
    found = (
        _gap(chunk[start : start + page_bytes], first + start // page_bytes)
        for start in range(0, len(chunk) - page_bytes + 1, page_bytes)
        if chunk[start] == _TABLE_LEAF
    )
    return [gap for gap in found if gap is not None]


def overwrite(db: sqlite3.Connection, gaps: Sequence[Gap]) -> list[None]:
    """Let a row of each page take the unused space for a moment; its content stays the same."""
    for gap in gaps:
        table, name, _ = gap.column
        sql = f"SELECT {name} FROM {table} WHERE rowid = ?"
        found = db.execute(sql, (gap.row,)).fetchone()
        if found is None:
            continue
        value = found[0]
        more = " " * gap.bytes if isinstance(value, str) else bytes(gap.bytes)
        update = f"UPDATE {table} SET {name} = ? WHERE rowid = ?"
        db.execute(update, (more if value is None else value + more, gap.row))
        db.execute(update, (value, gap.row))
    return [None] * len(gaps)


def _gap(page: bytes, number: int) -> Gap | None:
    rows = int.from_bytes(page[3:5], "big")
    start = _HEAD_BYTES + _POINTER_BYTES * rows
    end = int.from_bytes(page[5:7], "big") or len(page)
    tolerated = _SINGLE_TOLERATED if rows == 1 else 0
    if _CONTENT.search(page, start + tolerated, end) is None:
        return None
    free = end - start + page[7] + sum(_freeblocks(page))
    plans = (_plan(page, number, cell, free) for cell in _cells(page, rows))
    return max((plan for plan in plans if plan), key=lambda plan: plan.bytes, default=None)


def _freeblocks(page: bytes) -> Iterator[int]:
    at = int.from_bytes(page[1:3], "big")
    for _ in range(len(page) // 4):
        if not 0 < at <= len(page) - 4:
            return
        yield int.from_bytes(page[at + 2 : at + 4], "big")
        at = int.from_bytes(page[at : at + 2], "big")


def _cells(page: bytes, rows: int) -> Iterator[_Cell]:
    for each in range(rows):
        pointer = _HEAD_BYTES + _POINTER_BYTES * each
        at = int.from_bytes(page[pointer : pointer + 2], "big")
        payload, at = _varint(page, at)
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


def _plan(page: bytes, number: int, cell: _Cell, free: int) -> Gap | None:
    """By how much the row has to grow to take all that is free, or all that a row may take."""
    column = _column(cell.types)
    if column is None:
        return None
    kind = cell.types[column.number]
    length = max(0, (kind - _BLOB) // 2)
    room = min(free, len(page) - 35 - cell.local)
    for more in range(room, max(0, room - 16), -1):
        # The first byte of a length above 127 costs another one, twice.
        types = _size(max(_BLOB, kind) + 2 * more) - _size(kind)
        payload = cell.payload + more + types
        grown = _local(payload, len(page)) + _size(payload) - cell.local - _size(cell.payload)
        if 0 < grown <= free and length + more:
            return Gap(number, column, cell.row, more)
    return None


def _column(types: list[int]) -> _Column | None:
    """Which table a row is of, known by the kinds of its first values."""
    match types:
        case [0, source, _, _, _, _, _, _, _] if _is_text(source):
            return _Column("events", "headers", 7)
        case [event, sink, _, _, _, _, _, answer, *_] if _is_number(event) and _is_text(sink):
            return _Column("attempts", "answer", 7) if _is_text(answer) else None
        case [source, digest, _, _, headers, _] if _is_text(source) and digest == 76:
            return _Column("unreadable", "headers", 4) if headers == 0 or headers >= 12 else None
        case [0, source, _, _, signature, headers, _] if _is_text(source):
            is_quarantined = signature % 2 == 0 and headers % 2 == 0 and signature >= _BLOB
            return _Column("quarantine", "headers", 5) if is_quarantined else None
    return None


def _is_text(kind: int) -> bool:
    return kind >= _TEXT and kind % 2 == 1


def _is_number(kind: int) -> bool:
    return 1 <= kind <= _VARINT_MAX


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A number, and where the next begins; the ninth byte counts whole."""
    value = 0
    for count, byte in enumerate(page[at : at + _VARINT_MAX], 1):
        if count == _VARINT_MAX:
            return value << 8 | byte, at + count
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count
    return value, len(page)


def _size(number: int) -> int:
    """The bytes of a number as SQLite writes it."""
    return max(1, (number.bit_length() + 6) // 7)
