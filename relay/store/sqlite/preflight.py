"""Checks whether a store can be opened at a path, and whether it is safe there; creates nothing."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from relay.core.setting_errors import user_name
from relay.store import StoreWarning
from relay.store.sqlite import disk, driver, generation

_SUFFIXES = ("", "-wal", "-shm", ".lock")
_NEVER = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
_HEADER = b"SQLite format 3\0"
_VERSIONS = slice(18, 20)
"""In the header: how the file is written and read; 1 is without a log (fileformat2.html, 1.3.3)."""
_WAL_RESET_ADVICE = (
    "this SQLite can lose pages where several programs write to the file; relay writes with one "
    "connection only; open it with no other program, or install from deploy/requirements-sqlite.txt"
)

_OF_ANOTHER = (
    "is the log of another database, and would destroy this one, which is a backup: move the -wal "
    "and the -shm away, and put backups back with `relay store restore`"
)
_OF_ANOTHER_TIME = (
    "is the log of another database, or of this one at another time, and would destroy it: put "
    "back the file that belongs to the log, or move the -wal and the -shm away to go on without "
    "what they hold"
)


def check(path: Path) -> str | None:
    """Return the reason why this process could not open or create a store here, if any."""
    real = disk.real(path)
    if (cause := _check_path(path)) is not None:
        return cause
    for suffix in _SUFFIXES:
        file = real.with_name(real.name + suffix)
        if _mode(file) is not None and not _allows(file, os.R_OK | os.W_OK):
            return _read_only(file) or (
                f"{_user()} may not read and write {file}, {_ownership(file)}"
            )
    return (
        _check_folder(real.parent)
        or _check_header(real)
        or foreign_log(path)
        or next(disk.exposures(path), None)
    )


def warnings(path: Path) -> list[StoreWarning]:
    """Return what threatens an open store."""
    threats = []
    if driver.has_wal_reset_fault():
        fields = {"sqlite": driver.VERSION, "advice": _WAL_RESET_ADVICE}
        threats.append(StoreWarning("store.sqlite_fault", fields))
    network = disk.network_file_system(path)
    if network is not None:
        fields = {"path": str(path), "reason": network}
        threats.append(StoreWarning("store.network_file_system", fields))
    return threats


def _check_path(path: Path) -> str | None:
    """Return why no file can exist at a path, for any user."""
    if (kind := disk.kernel_file_system(path)) is not None:
        return (
            f"{disk.existing_parent(path)} shows the kernel's state ({kind}) and keeps no files: "
            "name a path on a disk"
        )
    for file in (path, disk.lock_path(path)):  # the longest name of the store's files
        try:
            file.stat()
        except OSError as error:
            if error.errno in _NEVER:
                return f"{error.strerror}: {path}; name another file"
    return None


def _read_only(existing: Path) -> str | None:
    if not disk.is_read_only(existing):
        return None
    return (
        f"{existing} is on a file system that is mounted read-only: mount it writable, or name a "
        "path on another one"
    )


def _check_folder(folder: Path) -> str | None:
    existing = folder
    while (mode := _mode(existing)) is None:
        existing = existing.parent
    if not stat.S_ISDIR(mode):
        return f"{existing} is not a folder"
    if _allows(existing, os.W_OK | os.X_OK):
        return None
    if (cause := _read_only(existing)) is not None:
        return cause
    if existing == folder:
        return f"{_user()} may not write in the folder {folder}, {_ownership(folder)}"
    return f"the folder {folder} is missing, and {_user()} may not create it in {existing}"


def _check_header(file: Path) -> str | None:
    if not file.is_file():
        return None
    # A file that cannot be read for another reason than its mode is a fault of the disk.
    with suppress(OSError), file.open("rb") as opened:
        if opened.read(len(_HEADER)) not in (b"", _HEADER):
            return f"{file} is not an SQLite database: name another file, or restore a backup"
    return None


def foreign_log(path: Path) -> str | None:
    """Return why the log beside a database is not its own; None where it may be.

    SQLite would lay it over the database. Call it only where this process has not opened that:
    closing a second descriptor would drop SQLite's locks.
    """
    real = disk.real(path)
    log = real.with_name(f"{real.name}-wal")
    if not (real.is_file() and log.is_file()):  # to open a pipe would wait for its writer
        return None
    with suppress(OSError), real.open("rb") as database, log.open("rb") as frames:
        before = _headers(database, frames)
        mismatch = _mismatch(database, frames)
        # A running relay may have begun another log meanwhile.
        if mismatch is not None and _headers(database, frames) == before:
            return f"{log} {mismatch}"
    return None


def _mismatch(database: IO[bytes], log: IO[bytes]) -> str | None:
    header, content = _headers(database, log)
    if not content:
        return None
    if header[_VERSIONS] == b"\1\1":  # a backup is in no mode that has a log
        return _OF_ANOTHER
    return None if generation.belong_together(database, log) else _OF_ANOTHER_TIME


def _headers(*files: IO[bytes]) -> list[bytes]:
    return [os.pread(file.fileno(), generation.DATABASE_HEADER_BYTES, 0) for file in files]


def _mode(path: Path) -> int | None:
    """None also below a folder without access, which is then the cause."""
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _allows(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _user() -> str:
    return f"the user {user_name(os.geteuid())}"


def _ownership(path: Path) -> str:
    status = path.stat()
    return f"which belongs to {user_name(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):04o})"
