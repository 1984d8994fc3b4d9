"""A file system of a few MiB that a test can fill; it goes with the mount namespace it is in."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

_MOUNT = 'mount -t tmpfs -o size="$1" relay "$2" && echo mounted && exec sleep 600'
_WAYS = (
    # As any user where the kernel allows it, and as root where it does not.
    (("unshare", "-rm"), ("nsenter", "--preserve-credentials", "-U", "-m")),
    (("unshare", "-m"), ("nsenter", "-m")),
)


class SmallDisk:
    """Mounted at `folder`, but only for programs that are started with `prefix`."""

    def __init__(self, folder: Path, *, size: int) -> None:
        self.folder = folder
        self.prefix: tuple[str, ...] = ()
        self._size = size
        self._keeper: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        for enter, join in _WAYS:
            if await self._mount(enter):
                assert self._keeper is not None
                self.prefix = (*join, "-t", str(self._keeper.pid))
                return self
        reason = "no file system can be mounted here: needs root or user namespaces"
        if os.environ.get("RELAY_REQUIRE_SERVERS"):
            pytest.fail(reason)
        pytest.skip(reason)

    async def __aexit__(self, *_: object) -> None:
        await self._unmount()

    def outside(self, path: Path) -> Path:
        """Where the test itself finds a path of the small disk."""
        assert self._keeper is not None
        return Path(f"/proc/{self._keeper.pid}/root{path}")

    def fill(self, *, leave: int = 0) -> None:
        """Leave so many bytes free, and no more."""
        folder = self.outside(self.folder)
        with (folder / "ballast").open("ab", buffering=0) as ballast, suppress(OSError):
            # Somebody else may take the last room, and then there is nothing left to fill.
            while (rest := _free(folder) - leave) > 0:
                ballast.write(bytes(min(rest, 1 << 20)))

    def make_room(self) -> None:
        (self.outside(self.folder) / "ballast").unlink()

    async def _mount(self, enter: tuple[str, ...]) -> bool:
        try:
            self._keeper = await asyncio.create_subprocess_exec(
                *(*enter, "sh", "-c", _MOUNT, "sh", str(self._size), str(self.folder)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return False
        assert self._keeper.stdout is not None
        if await self._keeper.stdout.readline() == b"mounted\n":
            return True
        await self._unmount()
        return False

    async def _unmount(self) -> None:
        if self._keeper is None:
            return
        if self._keeper.returncode is None:
            self._keeper.kill()
        await self._keeper.communicate()
        self._keeper = None


def _free(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
