"""Reads the config's text as TOML, without checking what it says."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from relay.core.config_values import read_text
from relay.core.errors import ConfigError, Fault
from relay.core.setting_errors import user_name


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
