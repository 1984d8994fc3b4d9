"""Reads the config's text as TOML without checking it, and the files that it refers to."""

import hashlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from relay.core.config_values import read_bytes, read_text
from relay.core.errors import ConfigError, Fault
from relay.core.setting_errors import user_name

Marks = dict[str, bytes | None]
"""SHA-256 of each file's content by path; None for an unreadable file."""


def read_document(path: Path) -> dict[str, Any]:
    """Read and parse a document; raises ConfigError."""
    return parse(path, read_file(path))


def read_file(path: Path) -> str:
    """Return a document's text; raises ConfigError."""
    try:
        return read_text(path)
    except ValueError as error:
        fault = f"{error}{_action(error.__cause__)}"
        raise ConfigError(str(path.absolute()), (Fault("", fault),)) from None


def _action(cause: BaseException | None) -> str:
    if isinstance(cause, FileNotFoundError):
        return "; create it, or name another with --config PATH or RELAY_CONFIG"
    if isinstance(cause, PermissionError):
        return f"; let the user {user_name(os.geteuid())} read it"
    return ""


def parse(path: Path, text: str) -> dict[str, Any]:
    """Parse a document's text as TOML; raises ConfigError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        fault = "is nested too deeply"
    except ValueError as error:  # not only TOMLDecodeError: also for a number of many digits
        last = text.rstrip().count("\n") + 1
        where = re.sub(r"at end of document", f"at the end, line {last}", str(error))
        fault = f"is not TOML: {where}{_beginning(text, where)}"
    raise ConfigError(str(path), (Fault("", fault),))


_LINE = re.compile(r"line (\d+)")
_BEGINNING = re.compile(r"\[{1,2}[\w .-]*\]{0,2}\s*$|[\w.-]+\s*=", re.ASCII)
"""A table's name, or a key; any other text may be a secret."""


def _beginning(text: str, where: str) -> str:
    """Quote the beginning of the line at which the parser stopped, without its value."""
    number = _LINE.search(where)
    lines = text.split("\n")
    if number is None or int(number[1]) > len(lines):
        return ""
    begins = _BEGINNING.match(lines[int(number[1]) - 1].strip())
    if begins is None:
        return ""
    dots = " …" if begins[0].endswith("=") else ""
    return f": {begins[0]}{dots}"


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
