"""Where tests keep their files: in memory, unless they are large or test a disk."""

import atexit
import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108
_ROOM_BYTES = 3 << 30
"""A run of all tests takes less; a container's default for shared memory is 64 MiB."""


def use_memory() -> None:
    """Make it the default place for temporary files where it has room: an fsync is free there."""
    if not _MEMORY.is_dir():
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = str(_MEMORY)


def of_process() -> Path:
    """Make a folder that is removed as the process ends, also if the test is skipped meanwhile.

    What is registered with `atexit` afterwards, such as a server's end, comes before its removal.
    """
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


def on_disk() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="relay-", dir="/var/tmp")
