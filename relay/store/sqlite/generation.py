"""Which log belongs to which database: both have the number of the log's generation.

SQLite lays any whole log over any database that it finds beside it. So the database has a number,
its `user_version`, which begins at random and rises by one with each log. Page 1 holds it, so that
the first transaction of a log has the number after that of its database.
Formats: sqlite.org/fileformat2.html, sections 1.3 and 4.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import IO, NamedTuple

from relay.store.sqlite.driver import sqlite3
from relay.store.sqlite.wal import FRAME_HEADER_BYTES, HEADER_BYTES

DATABASE_HEADER_BYTES = 100

UNMARKED = 0
"""The number in stores of older relays, and in backups, which begin a series of their own.

No series has less.
"""

_FIRST_MAX = 1 << 30
"""Half of what the field holds; the other half is more than the logs of a century."""

_FRAMES_MAX = 4096
"""Frames that are read to find a number, half a second's worth: the start waits for it.

Mostly the first transaction is enough.
"""

_DATABASE = struct.Struct(">16xH42xi")
"""Page size and number, which another program may have made negative."""
_IS_LOG = 0x377F0682
"""In the last bit: whether the words of the checksums are big-endian."""
_LOG = struct.Struct(">I4xI4x8s2I")
"""Magic number, page size, salts, checksum."""
_FRAME = struct.Struct(">2I8s2I")
"""Page, size of the database after a commit or 0, salts, checksum up to here."""
_WORDS = 0xFFFFFFFF
_PAGE_SIZE_MAX = 1 << 16


def advance(db: sqlite3.Connection) -> None:
    """Write the next number, in the first transaction after the checkpoint of a whole log."""
    (number,) = db.execute("PRAGMA user_version").fetchone()
    following = number + 1 if number > UNMARKED else SystemRandom().randrange(1, _FIRST_MAX)
    db.execute(f"PRAGMA user_version = {following}")


def unmark(path: Path) -> None:
    """Let a backup begin a series of its own, which no log of the copied store continues."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute(f"PRAGMA user_version = {UNMARKED}")
    finally:
        db.close()


def belong_together(database: IO[bytes], log: IO[bytes]) -> bool:
    """Whether a log can be that of a database; True also where nothing tells."""
    header = database.read(DATABASE_HEADER_BYTES)
    opened = _open(log)
    if len(header) < DATABASE_HEADER_BYTES or opened is None:
        return True
    page_size, number = _DATABASE.unpack_from(header)
    # The field holds 1 for the largest page size.
    if opened.page_size != (page_size if page_size > 1 else _PAGE_SIZE_MAX):
        return False
    return number <= UNMARKED or _continues(number, _numbers(opened))


def _continues(number: int, numbers: Iterator[int | None]) -> bool:
    """Whether a database with a number can be at the beginning of these, or amid them.

    None stands for all that were not read.
    """
    first = next(numbers, None)
    if first is None:
        return True
    if number <= first:
        return number >= first - 1
    return any(later is None or later >= number for later in numbers)


class _Log(NamedTuple):
    file: IO[bytes]
    words: str
    page_size: int
    salts: bytes
    checksum: tuple[int, int]


def _open(file: IO[bytes]) -> _Log | None:
    """Return a log behind its header; None for one that SQLite would not read."""
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    magic, page_size, salts, *checksum = _LOG.unpack(header)
    words = ">" if magic & 1 else "<"
    first, second = _checksum(header[:-8], words, (0, 0))
    if magic | 1 != _IS_LOG | 1 or [first, second] != checksum:
        return None
    return _Log(file, words, page_size, salts, (first, second))


def _numbers(log: _Log) -> Iterator[int | None]:
    """Yield the numbers in the committed copies of page 1, then None if not all was read."""
    checksum, last = log.checksum, None
    for _ in range(_FRAMES_MAX):
        head = log.file.read(FRAME_HEADER_BYTES)
        page = log.file.read(log.page_size)
        if len(head) < FRAME_HEADER_BYTES or len(page) < log.page_size:
            return
        number, size_after_commit, salts, *expected = _FRAME.unpack(head)
        checksum = _checksum(page, log.words, _checksum(head[:8], log.words, checksum))
        if salts != log.salts or list(checksum) != expected:
            return
        if number == 1:
            _, last = _DATABASE.unpack_from(page)
        if size_after_commit and last is not None:
            yield last
            last = None
    yield None


def _checksum(content: bytes, words: str, so_far: tuple[int, int]) -> tuple[int, int]:
    first, second = so_far
    for left, right in struct.iter_unpack(f"{words}2I", content):
        first = (first + left + second) & _WORDS
        second = (second + right + first) & _WORDS
    return first, second
