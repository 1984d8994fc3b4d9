"""The file system of the store: its lock, its free space, and whether it can be trusted."""

import errno
import fcntl
import math
import os
import re
import tempfile
from collections.abc import Iterator
from os.path import samestat
from pathlib import Path
from typing import IO

from relay.core.clock import Clock
from relay.core.errors import StoreBroken, StoreExposed, StoreFull, StoreLocked, StoreMoved

MEASURE_INTERVAL_S = 0.1

PROBE_BYTES = 16 << 20
"""Size of the space probe, in bytes: larger than what an exceeded quota leaves."""

_SHORTAGES = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk's quota is used up"}

_LOCK = ".lock"
"""Suffix to the store's name."""

_OF_THE_KERNEL = frozenset(
    {
        *("proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs"),
        *("configfs", "pstore", "bpf", "mqueue", "efivarfs", "fusectl", "binfmt_misc", "nsfs"),
    }
)
"""File systems that show the kernel's own state, and keep no files."""

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph"})


def real(path: Path) -> Path:
    """Resolve symbolic links: SQLite and the relay put their files beside the real one."""
    # `resolve` raises a RuntimeError for circular links; here opening the file fails.
    try:
        return Path(os.path.realpath(path))
    except OSError:  # a link of another user's process, in /proc
        return path.absolute()


def make_folder(path: Path) -> None:
    """Create the folder of the store, for its owner only."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True)
        sync_folder(path.parent.parent)


def make_file(path: Path) -> None:
    """Create the store's file, for its owner only; SQLite gives its log the same mode."""
    # Not after SQLite has opened it: closing a second descriptor would drop SQLite's locks.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    sync_folder(path.parent)


def lock(path: Path) -> IO[bytes]:
    """Lock the store while the returned file is open.

    Raises StoreLocked if another process holds the lock, and OSError.
    """
    # Beside the real file, so that two symbolic links to it do not make two locks.
    file = lock_path(path).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreLocked(
            f"another relay holds the store {path}; stop that one, or change store.path"
        ) from None
    except OSError:
        file.close()
        raise
    return file


def lock_path(path: Path) -> Path:
    """Return the file that a relay locks, whose name is longer than the store's."""
    return _beside(path, _LOCK)


def is_free(path: Path) -> bool:
    """Whether no process holds the lock; False also if that is unknown.

    Holds a shared lock for a moment; a relay that starts right then is refused.
    """
    try:
        with lock_path(path).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def require_single(path: Path) -> None:
    """Raise StoreExposed if another relay could open the store past the lock, and OSError."""
    for exposure in exposures(path):
        raise StoreExposed(f"{exposure}, then start again")


def exposures(path: Path) -> Iterator[str]:
    """Yield other paths to the store's files, which bypass the lock, each with the action."""
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


def require_in_place(path: str | Path, opened: os.stat_result) -> os.stat_result:
    """Return the status of a file; raises StoreMoved if it is not the one that was opened."""
    try:
        status = os.stat(path)  # noqa: PTH116  a Path costs more
    except OSError:
        raise StoreMoved(f"the file {path} was removed or replaced") from None
    if not samestat(status, opened):
        raise StoreMoved(f"the file {path} was removed or replaced")
    return status


def shortage(path: Path) -> str | None:
    """Probe for space beside the store; return the shortage, None if there is space."""
    try:
        with tempfile.TemporaryFile(dir=real(path).parent) as probe:
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
            os.fsync(probe.fileno())
    except OSError as error:
        return lack_of_room(error)
    return None


def lack_of_room(error: OSError) -> str | None:
    """Return the shortage of space that an error reports, if any."""
    return _SHORTAGES.get(error.errno or 0)


def free_to_use(path: Path) -> int:
    """Return the free space for a store that may not exist yet, nor its folder; raises OSError."""
    status = os.statvfs(existing_parent(path))
    return status.f_bavail * status.f_frsize


def existing_parent(path: Path) -> Path:
    """Return the folder of a path, or the nearest existing one above it."""
    return next(folder for folder in real(path).parents if os.path.exists(folder))  # noqa: PTH110  never raises


def is_read_only(path: Path) -> bool:
    """Whether an existing path is on a file system that is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def free_bytes(path: Path) -> int:
    """Return the space for an unprivileged process beside the store; raises StoreBroken."""
    try:
        status = os.statvfs(path.parent)
    except OSError as error:
        raise StoreBroken(f"the folder of {path} cannot be read: {error.strerror}") from None
    return status.f_bavail * status.f_frsize


class Room:
    """Enforces the floor of free space, measured a few times per second."""

    def __init__(self, path: Path, min_free: int, clock: Clock) -> None:
        self._path = path
        self._min_free = min_free
        self._clock = clock
        self._measured_s = -math.inf
        self._free = 0

    def require(self) -> None:
        """Raise StoreFull below the floor, and StoreBroken if it cannot be measured."""
        now_s = self._clock.monotonic()
        if now_s - self._measured_s > MEASURE_INTERVAL_S:
            self._free = free_bytes(self._path)
            self._measured_s = now_s
        if self._free < self._min_free:
            # A constant text, so that the log can sample repeated lines.
            raise StoreFull(f"less than min_free ({self._min_free} bytes) is free: {self._path}")


def size_bytes(path: Path) -> int:
    """Return the size of the database with its write-ahead log and index."""
    return sum(_size(_beside(path, suffix)) for suffix in ("", "-wal", "-shm"))


def network_file_system(path: Path) -> str | None:
    """Return the type of the path's file system if SQLite's locks are unreliable on it."""
    kind = _file_system(path)
    return kind if kind in _NETWORK or kind.startswith("fuse") else None


def kernel_file_system(path: Path) -> str | None:
    """Return the type of the path's file system if it keeps no files."""
    kind = _file_system(path)
    return kind if kind in _OF_THE_KERNEL else None


def _file_system(path: Path) -> str:
    """Return the type of the file system that a path is on; empty if it is unknown."""
    folder = real(path).parent
    longest = ("", "")
    for point, kind in _mounts():
        if folder.is_relative_to(point) and len(point) >= len(longest[0]):
            longest = (point, kind)
    return longest[1]


def _beside(path: Path, suffix: str) -> Path:
    file = real(path)
    return file.with_name(file.name + suffix)


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield mount points with the types of their file systems; none if unknown."""
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
    # The kernel writes a space in a mount point as \040.
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
