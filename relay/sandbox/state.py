"""The file that holds a workspace: one JSON document, written as a whole."""

import asyncio
import os
from pathlib import Path

import msgspec

from relay.sandbox.errors import StateUnusable
from relay.sandbox.model import Workspace
from relay.sandbox.schedule import Schedule

INTERVAL_S = 1.0
"""Time between two writes while things happen that no request asked for."""

_SHARE = 50
"""A write is followed by a pause this many times as long, so that a large state costs little."""


def read(path: Path) -> Workspace | None:
    """Read a workspace; None without a file. Raises StateUnusable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Workspace)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateUnusable(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StateUnusable(f"{path}: not the state of a sandbox; name another file") from None


class StateFile:
    """Writes a workspace to its file."""

    def __init__(self, path: Path, workspace: Workspace, schedule: Schedule) -> None:
        self._path = path
        self._workspace = workspace
        self._schedule = schedule

    def write(self) -> None:
        """Replace the file; only its owner may read it, because it holds keys and secrets."""
        self._workspace.schedule_ms = self._schedule.time_ms()
        content = msgspec.json.encode(self._workspace)
        try:
            _replace(self._path, content)
        except OSError as error:
            raise StateUnusable(f"{self._path}: {error.strerror}") from None

    async def run(self) -> None:
        """Write the file again and again while things happen; raises StateUnusable."""
        fired = -1
        while True:
            started_s = self._schedule.clock.monotonic()
            if fired != self._schedule.fired:
                fired = self._schedule.fired
                self.write()
            written_s = self._schedule.clock.monotonic() - started_s
            await asyncio.sleep(max(INTERVAL_S, _SHARE * written_s))


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    beside.replace(path)
