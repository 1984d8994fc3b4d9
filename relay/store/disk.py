"""The file system under the store: who holds it, how much room there is, and whether it can be trusted."""

import fcntl
import math
import os
from pathlib import Path
from typing import IO

from relay.clock import Clock
from relay.errors import StoreFull, StoreLocked

MEASURE_EVERY_S = 0.1

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

    Raises StoreLocked where another process has it.
    """
    file = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreLocked(f"another relay holds the store {path}") from None
    return file


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write beside the store."""
    room = os.statvfs(path.parent)
    return room.f_bavail * room.f_frsize


class Room:
    """The floor of free space; measured a few times a second at most, for it costs a system call."""

    def __init__(self, path: Path, min_free: int, clock: Clock) -> None:
        self._path = path
        self._min_free = min_free
        self._clock = clock
        self._measured_s = -math.inf
        self._free = 0

    def require(self) -> None:
        """Raises StoreFull below the floor."""
        now_s = self._clock.monotonic()
        if now_s - self._measured_s > MEASURE_EVERY_S:
            self._free = free_bytes(self._path)
            self._measured_s = now_s
        if self._free < self._min_free:
            raise StoreFull(
                f"{self._free} bytes are free beside {self._path}, min_free asks for {self._min_free}"
            )


def size_bytes(path: Path) -> int:
    """The database with its write-ahead log and index."""
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))
    return sum(file.stat().st_size for file in files if file.exists())


def network_file_system(path: Path) -> str | None:
    """The type of the file system that holds the path, where SQLite's locks cannot be trusted on it."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    folder = path.parent.resolve()
    best = ("", "")
    for line in mounts:
        left, _, right = line.partition(" - ")
        point, kind = left.split()[4], right.split()[0]
        if folder.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    kind = best[1]
    return kind if kind in _NETWORK or kind.startswith("fuse") else None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
