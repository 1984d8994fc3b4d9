"""Check that the write-ahead log on the disk is the one that SQLite has written.

SQLite keeps the log open, and does not notice that it was removed or overwritten: it would go on
writing to a removed file, and copy a damaged log over the database.
The layout is that of sqlite.org/walformat.html, which all versions of SQLite share.
"""

import mmap
import os
import struct
from pathlib import Path

from relay.core.errors import StoreBroken
from relay.store.sqlite import disk

HEADER_BYTES = 32
_SALTS_AT = 16
FRAME_HEADER_BYTES = 24
_PROOF = slice(8, 24)
"""Part of a frame header: the log's salts and the checksum of all frames so far."""

_INDEX_BYTES = 48
_INDEX = struct.Struct("=14xHI4xII8s8x")
"""Header of the index: page size, committed frames, checksum of the last frame, salts."""
_CHECKSUM = struct.Struct(">II")


class _File:
    """An open file that must stay at its path."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = Path(name).open("rb", buffering=0)  # noqa: SIM115
        self.descriptor = self._file.fileno()
        self._status = os.fstat(self.descriptor)
        self.close = self._file.close

    def require(self) -> None:
        """Raise StoreMoved if the path leads to no file or to another one."""
        disk.require_in_place(self.name, self._status)

    def read(self, size: int, offset: int) -> bytes:
        """Read exactly this many bytes; raises StoreBroken if there are fewer."""
        try:
            content = os.pread(self.descriptor, size, offset)
        except OSError as error:
            raise StoreBroken(f"the file {self.name} cannot be read: {error.strerror}") from None
        if len(content) < size:
            raise StoreBroken(f"the file {self.name} was cut short while it was in use")
        return content


class Wal:
    """Compares the log with its index, which SQLite keeps in shared memory.

    Open it after a first commit, and close it after SQLite: closing a descriptor of the index
    drops SQLite's locks on it.
    """

    def __init__(self, path: Path) -> None:
        """`path` is that of the database, without symbolic links. Raises OSError."""
        self._log, self._shared = _File(f"{path}-wal"), _File(f"{path}-shm")
        self._index = mmap.mmap(self._shared.descriptor, _INDEX_BYTES, prot=mmap.PROT_READ)
        self.frames = 0
        """Committed pages in the log."""
        self.bytes = 0
        """What they take in it."""
        self._salts = b""
        self._last_at = 0
        self._last = b""
        """The last frame as of the last check."""

    def require_index(self) -> None:
        """Raise StoreMoved if the index was removed or replaced.

        Another program would create a new one, and the two would overwrite each other's pages.
        """
        self._shared.require()

    def require(self) -> None:
        """Raise StoreMoved if the log was removed or replaced, StoreBroken if it is damaged.

        Call it between two transactions of the writing connection. The last frame of the previous
        call must be unchanged unless SQLite has restarted the log: a log that was truncated and
        then written to ends correctly, but has a hole.
        """
        self._log.require()
        page_size, frames, *checksum, salts = _INDEX.unpack_from(self._index)
        # The field holds 1 for the largest page size, 64 KiB.
        size = FRAME_HEADER_BYTES + (page_size if page_size > 1 else 1 << 16)
        if self.frames and self._salts == salts:
            self._require_same(self._log.read(size, self._last_at), self._last)
        if frames:
            self._last_at = HEADER_BYTES + (frames - 1) * size
            self._last = self._log.read(size, self._last_at)
            self._require_same(self._last[_PROOF], salts + _CHECKSUM.pack(*checksum))
            self._require_same(self._log.read(len(salts), _SALTS_AT), salts)
        # Last, so that a check that failed is seen by `has_grown`.
        self.frames, self._salts = frames, salts
        self.bytes = frames * size

    def has_grown(self) -> bool:
        """Whether a transaction was committed since the last check."""
        _, frames, *_, salts = _INDEX.unpack_from(self._index)
        # A transaction that is rolled back may have restarted the log, which leaves it empty.
        return bool(frames) and (frames, salts) != (self.frames, self._salts)

    def close(self) -> None:
        self._index.close()
        self._log.close()
        self._shared.close()

    def _require_same(self, actual: bytes, written: bytes) -> None:
        if actual != written:
            raise StoreBroken(f"the file {self._log.name} was overwritten while it was in use")
