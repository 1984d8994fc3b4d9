"""The file system under the store: who holds it, what room there is, can it be trusted."""

import errno
import fcntl
import math
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreExposed, StoreFull, StoreLocked

MEASURE_EVERY_S = 0.1

PROBE_BYTES = 16 << 20
"""More than a transaction usually writes: the rest of a quota must not look like room for it."""

_SHORTAGES = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk's quota is used up"}

_LOCK = ".lock"
"""Behind the store's name."""

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph"})


def real(path: Path) -> Path:
    """The path without symbolic links; what SQLite and the relay put beside the store is there."""
    # Not `resolve`, which raises a RuntimeError for links in a circle; here the opening fails.
    return Path(os.path.realpath(path))


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
    # Beside the file itself, so that two symbolic links to it do not make two locks.
    file = _beside(path, _LOCK).open("ab")
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
    try:
        with _beside(path, _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def require_single(path: Path) -> None:
    """Raises StoreExposed where another relay could open the store past the lock, and OSError."""
    for exposure in exposures(path):
        raise StoreExposed(f"{exposure}, then start again")


def exposures(path: Path) -> Iterator[str]:
    """Other ways to the store's files, which lead past the lock, each with what to do."""
    for file in (_beside(path, ""), _beside(path, "-wal")):
        links = file.stat().st_nlink if file.is_file() else 1
        if links > 1:
            yield (
                f"the file {file} has {links} hard links, and a second relay could open the store "
                f"by another one: find them with `find MOUNT_POINT -xdev -samefile {file}` and "
                "remove the others"
            )
        if str(file) in (point for point, _ in _mounts()):
            yield (
                f"the file {file} is mounted without its folder, so that its -wal and its lock lie "
                "elsewhere: mount the folder instead"
            )


def shortage(path: Path) -> str | None:
    """Why there is no room beside the store, found out by asking for some; None if there is."""
    try:
        with tempfile.TemporaryFile(dir=real(path).parent) as probe:
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
            os.fsync(probe.fileno())
    except OSError as error:
        return lack_of_room(error)
    return None


def lack_of_room(error: OSError) -> str | None:
    """What an error says about room, where it does."""
    return _SHORTAGES.get(error.errno or 0)


def free_bytes(path: Path) -> int:
    """What an unprivileged process may still write beside the store; raises StoreBroken."""
    try:
        room = os.statvfs(path.parent)
    except OSError as error:
        raise StoreBroken(f"the folder of {path} cannot be read: {error.strerror}") from None
    return room.f_bavail * room.f_frsize


class Room:
    """The place of the store: above its floor of free space, as of a few looks a second."""

    def __init__(self, path: Path, min_free: int, clock: Clock) -> None:
        self._path = path
        self._min_free = min_free
        self._clock = clock
        self._measured_s = -math.inf
        self._free = 0

    def require(self) -> None:
        """Raises StoreFull below the floor, and StoreBroken where it cannot be measured."""
        now_s = self._clock.monotonic()
        if now_s - self._measured_s > MEASURE_EVERY_S:
            self._free = free_bytes(self._path)
            self._measured_s = now_s
        if self._free < self._min_free:
            # A constant text, so that repeated lines of it can be counted rather than written.
            raise StoreFull(f"less than min_free ({self._min_free} bytes) is free: {self._path}")


def size_bytes(path: Path) -> int:
    """The database with its write-ahead log and index."""
    return sum(_size(_beside(path, suffix)) for suffix in ("", "-wal", "-shm"))


def network_file_system(path: Path) -> str | None:
    """The type of the path's file system, where SQLite's locks cannot be trusted on it."""
    folder = path.parent.resolve()
    best = ("", "")
    for point, kind in _mounts():
        if folder.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    kind = best[1]
    return kind if kind in _NETWORK or kind.startswith("fuse") else None


def _beside(path: Path, suffix: str) -> Path:
    place = real(path)
    return place.with_name(place.name + suffix)


def _mounts() -> Iterator[tuple[str, str]]:
    """Mount points and the types of their file systems; none where that cannot be seen."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        left, _, right = line.partition(" - ")
        yield _unescaped(left.split()[4]), right.split()[0]


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
