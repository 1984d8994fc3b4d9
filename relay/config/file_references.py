"""Which files a config was made of beside its own, and what was in each."""

import hashlib
from pathlib import Path

from relay.core.config_values import read_bytes

Marks = dict[str, bytes | None]
"""A digest of each file's content by its path; None for one that cannot be read."""


class References:
    """Reads files and remembers what it found.

    Pipes are left out: they can be read only once, so looking at them again would wait for ever.
    """

    def __init__(self) -> None:
        self.marks: Marks = {}

    def read(self, path: str) -> bytes:
        """Raises ValueError with the cause."""
        lasting = Path(path).is_file()
        content = read_bytes(path)
        if lasting:
            self.marks[path] = _digest(content)
        return content

    def note(self, path: str) -> None:
        """Take a mark of a file that somebody else is about to read."""
        if Path(path).is_file():
            self.marks[path] = mark(path)


def mark(path: str) -> bytes | None:
    """What stands in a file now; the path is followed anew each time, so links may be swapped."""
    try:
        return _digest(read_bytes(path)) if Path(path).is_file() else None
    except ValueError:
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
