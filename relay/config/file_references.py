"""Digests of the files that a config refers to, so that changes can be detected."""

import hashlib
from pathlib import Path

from relay.core.config_values import read_bytes

Marks = dict[str, bytes | None]
"""SHA-256 of each file's content by path; None for an unreadable file."""


class References:
    """Reads files and records a digest of each.

    Pipes are not recorded: reading one a second time would block forever.
    """

    def __init__(self) -> None:
        self.marks: Marks = {}

    def read(self, path: str) -> bytes:
        """Read and record a file; raises ValueError with the cause."""
        lasting = Path(path).is_file()
        content = read_bytes(path)
        if lasting:
            self.marks[path] = _digest(content)
        return content

    def note(self, path: str) -> None:
        """Record a file that other code is about to read."""
        if Path(path).is_file():
            self.marks[path] = mark(path)


def mark(path: str) -> bytes | None:
    """Return a digest of a file's current content; symbolic links are followed each time."""
    try:
        return _digest(read_bytes(path)) if Path(path).is_file() else None
    except ValueError:
        return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
