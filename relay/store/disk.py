"""The file system under the store: who holds it, what room there is, can it be trusted."""

import fcntl
import math
import os
import re
from pathlib import Path
from typing import IO

from relay.clock import Clock
from relay.errors import StoreBroken, StoreFull, StoreLocked

MEASURE_EVERY_S = 0.1

_LOCK = ".lock"
"""Behind the store's name."""

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph"})


def make_folder(path: Path) -> None:
    """Make the folder of the store, for its owner only."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True)
        _sync(path.parent.parent)


def make_file(path: Path) -> None:
    """Make the store's file, readable by its owner only; SQLite gives its log the same mode."""
    # Only before SQLite has it open: closing a second descriptor would drop SQLite's locks.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    _sync(path.parent)


def lock(path: Path) -> IO[bytes]:
    """Take the lock beside the store for as long as the returned file is open.

    Raises StoreLocked where another process has it, and OSError.
    """
    # Beside the file itself, so that two links to it do not make two locks. Not `resolve`, which
    # raises a RuntimeError for links in a circle; here it is the opening that fails.
    real = Path(os.path.realpath(path))
    file = real.with_name(real.name + _LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreLocked(f"another relay holds the store {path}") from None
    except OSError:
        file.close()
        raise
    return file


def is_free(path: Path) -> bool:
    """Whether no process has the lock; False also where that cannot be seen.

    Takes it for a moment, beside others who only look; a relay that starts right then is refused.
    """
    real = Path(os.path.realpath(path))
    try:
        with real.with_name(real.name + _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write beside the store; raises StoreBroken."""
    try:
        room = os.statvfs(path.parent)
    except OSError as error:
        raise StoreBroken(f"the folder of {path} cannot be read: {error.strerror}") from None
    return room.f_bavail * room.f_frsize


class Room:
    """The place of the store: still there, and above its floor of free space.

    Looked at a few times a second at most, for it costs two system calls.
    """

    def __init__(self, path: Path, min_free: int, clock: Clock) -> None:
        self._path = path
        self._min_free = min_free
        self._clock = clock
        self._identity = _identity(path)
        self._measured_s = -math.inf
        self._free = 0

    def require(self) -> None:
        """Raises StoreFull below the floor, and StoreBroken where the file is not ours any more."""
        now_s = self._clock.monotonic()
        if now_s - self._measured_s > MEASURE_EVERY_S:
            if _identity(self._path) != self._identity:
                raise StoreBroken(f"the file {self._path} was removed or replaced")
            self._free = free_bytes(self._path)
            self._measured_s = now_s
        if self._free < self._min_free:
            # A constant text, so that repeated lines of it can be counted rather than written.
            raise StoreFull(f"less than min_free ({self._min_free} bytes) is free: {self._path}")


def size_bytes(path: Path) -> int:
    """The database with its write-ahead log and index."""
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
    return sum(_size(file) for file in files)


def network_file_system(path: Path) -> str | None:
    """The type of the path's file system, where SQLite's locks cannot be trusted on it."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    folder = path.parent.resolve()
    best = ("", "")
    for line in mounts:
        left, _, right = line.partition(" - ")
        point, kind = _unescaped(left.split()[4]), right.split()[0]
        if folder.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    kind = best[1]
    return kind if kind in _NETWORK or kind.startswith("fuse") else None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _unescaped(point: str) -> str:
    # The kernel writes a blank in a mount point as \040.
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
