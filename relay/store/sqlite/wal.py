"""The write-ahead log on its disk: the file of that name holds what SQLite has committed to it.

SQLite keeps the log open and notices neither that it was removed nor that it was overwritten.
The layout is that of sqlite.org/walformat.html, which every version of SQLite shares.
"""

import mmap
import os
import struct
from pathlib import Path

from relay.core.errors import StoreBroken, StoreMoved

_HEADER_BYTES = 32
_SALTS_AT = 16
_FRAME_HEADER_BYTES = 24
_PROOF = slice(8, 24)
"""Of a frame: the log's salts and the checksum of all frames so far."""

_INDEX_BYTES = 48
_INDEX = struct.Struct("=14xHI4xII8s8x")
"""The head of the index: page size, committed frames, checksum of the last frame, salts."""
_CHECKSUM = struct.Struct(">II")


class _File:
    """One of the two files: open, and expected under its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = Path(name).open("rb", buffering=0)  # noqa: SIM115
        self.descriptor = self._file.fileno()
        self._identity = _identity(os.fstat(self.descriptor))
        self.close = self._file.close

    def require(self) -> None:
        """Raises StoreMoved where the name leads to no file or to another one."""
        try:
            status = os.stat(self.name)  # noqa: PTH116  a Path costs more
        except OSError:
            raise StoreMoved(f"the file {self.name} was removed or replaced") from None
        if _identity(status) != self._identity:
            raise StoreMoved(f"the file {self.name} was removed or replaced")

    def read(self, size: int, offset: int) -> bytes:
        """Raises StoreBroken where there is less."""
        try:
            found = os.pread(self.descriptor, size, offset)
        except OSError as error:
            raise StoreBroken(f"the file {self.name} cannot be read: {error.strerror}") from None
        if len(found) < size:
            raise StoreBroken(f"the file {self.name} was cut short while it was in use")
        return found


class Wal:
    """Compares the log with its index, which SQLite keeps in shared memory.

    To be opened after a first commit, and closed after SQLite: closing a descriptor of the index
    drops SQLite's locks on it.
    """

    def __init__(self, path: Path) -> None:
        """`path` is the database's, without symbolic links. Raises OSError."""
        self._log, self._shared = _File(f"{path}-wal"), _File(f"{path}-shm")
        self._index = mmap.mmap(self._shared.descriptor, _INDEX_BYTES, prot=mmap.PROT_READ)
        self.frames = 0
        """Committed pages in the log."""
        self._salts = b""
        self._last_at = 0
        self._last = b""
        """The last frame as it was found."""

    def require_index(self) -> None:
        """Raises StoreMoved where the index was removed or replaced.

        Another program would make a new one, and the two would write over each other's pages.
        """
        self._shared.require()

    def require(self) -> None:
        """Raises StoreMoved where the log was removed or replaced, StoreBroken for a damaged one.

        To be called between two transactions of the connection that writes. From one call to the
        next the last frame stays as it was, unless SQLite has begun the log anew: a log that was
        cut short and written on ends well, but has a hole.
        """
        self._log.require()
        page_size, frames, *checksum, salts = _INDEX.unpack_from(self._index)
        # The largest page, of 64 KiB, does not fit the field.
        size = _FRAME_HEADER_BYTES + (page_size if page_size > 1 else 1 << 16)
        if self.frames and self._salts == salts:
            self._require_same(self._log.read(size, self._last_at), self._last)
        self.frames, self._salts = frames, salts
        if frames:
            self._last_at = _HEADER_BYTES + (frames - 1) * size
            self._last = self._log.read(size, self._last_at)
            self._require_same(self._last[_PROOF], salts + _CHECKSUM.pack(*checksum))
            self._require_same(self._log.read(len(salts), _SALTS_AT), salts)

    def close(self) -> None:
        self._index.close()
        self._log.close()
        self._shared.close()

    def _require_same(self, found: bytes, written: bytes) -> None:
        if found != written:
            raise StoreBroken(f"the file {self._log.name} was overwritten while it was in use")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
