"""Files of mode 0600 that hold a secret, or the state of a change, and are replaced whole."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from relay.core.config_values import Secret
from relay.core.errors import FileRefused

PADDING = b"\n" * 4096
"""Reserved on the disk beforehand: a disk that is full later must not cost the secret."""

_MODE = 0o600
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class SecretFile:
    """A secret's file that has been proved writable: its replacement, the draft, is on the disk.

    The draft is locked, so that two commands do not write one secret's file.
    """

    def __init__(self, path: Path, *, like: os.stat_result | None = None) -> None:
        """Write the draft, with the mode and owner of `like`; raises FileRefused."""
        self.path = path
        self._draft = _beside(path, "new")
        self._locked = False
        try:
            self._descriptor = os.open(self._draft, _FLAGS, _MODE)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            self._lock()
            self._fill(like)
        except OSError as error:
            self.close()
            raise _refusal(path, error) from None

    @classmethod
    def new(cls, path: Path) -> Self:
        """Reserve a file that does not exist yet, or is empty; raises FileRefused."""
        path = _resolved(path)
        try:
            known = path.stat() if path.exists() else None
        except OSError as error:
            raise _refusal(path, error) from None
        if known is not None and (known.st_size > 0 or not stat.S_ISREG(known.st_mode)):
            raise FileRefused(path, "exists already: give another path, or remove it")
        return cls(path)

    @classmethod
    def known(cls, path: Path) -> Self:
        """Reserve the replacement of a secret's file, whose mode and owner stay.

        The file is replaced once by its own content, because only that proves that it can be: a
        single file that is mounted cannot, although its folder can be written. Raises FileRefused.
        """
        path = _resolved(path)
        try:
            like, content = path.stat(), path.read_bytes()
        except OSError as error:
            raise _refusal(path, error) from None
        if not stat.S_ISREG(like.st_mode):
            raise FileRefused(path, "is not a regular file")
        rehearsal = cls(path, like=like)
        try:
            rehearsal.replace(content)
        except OSError as error:
            raise _refusal(path, error) from None
        finally:
            rehearsal.close()
        return cls(path, like=like)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, secret: Secret) -> None:
        """Put a secret into place, atomically and durably; raises OSError."""
        self.replace(secret.reveal().encode() + b"\n")

    def replace(self, content: bytes) -> None:
        """Put content into place, atomically and durably; raises OSError."""
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))
        os.fsync(self._descriptor)
        self._draft.rename(self.path)
        _sync_folder(self.path)

    def close(self) -> None:
        """Remove the draft, unless it is in place; may be called twice."""
        if self._descriptor < 0:
            return
        if self._locked and self._is_draft():
            self._draft.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _lock(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not self._is_draft():
            raise BlockingIOError  # another command has just put it into place
        self._locked = True

    def _fill(self, like: os.stat_result | None) -> None:
        os.ftruncate(self._descriptor, 0)
        os.fchmod(self._descriptor, _MODE if like is None else stat.S_IMODE(like.st_mode))
        own = os.fstat(self._descriptor)
        if like is not None and (like.st_uid, like.st_gid) != (own.st_uid, own.st_gid):
            os.fchown(self._descriptor, like.st_uid, like.st_gid)
        os.pwrite(self._descriptor, PADDING, 0)
        os.fsync(self._descriptor)

    def _is_draft(self) -> bool:
        try:
            known = self._draft.lstat()
        except OSError:
            return False
        return os.path.samestat(known, os.fstat(self._descriptor))


def replace(path: Path, content: bytes) -> None:
    """Write a file of mode 0600, atomically and durably; raises OSError."""
    draft = _beside(path, "draft")
    descriptor = os.open(draft, _FLAGS | os.O_TRUNC, _MODE)
    try:
        os.pwrite(descriptor, content, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(path)
    _sync_folder(path)


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file, which has its name once the block has ended, and is durable then.

    Nothing is left of a block that fails. On most file systems nothing is left after a kill either.
    Raises FileExistsError, also for a file that appeared meanwhile, and OSError.
    """
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _nameless(path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_nlink == 0:
                # With `src_dir_fd` Python follows the link, which leads to the file.
                os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=folder)
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _nameless(path: Path) -> Iterator[IO[bytes]]:
    """Open a file without a name, or with its own where the file system needs one (open(2))."""
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, _MODE)
    except OSError:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        try:
            yield file
        except BaseException:
            if os.fstat(descriptor).st_nlink:
                path.unlink()
            raise


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{suffix}")


def _resolved(path: Path) -> Path:
    """Follow links, so that what they lead to is replaced, and not the link."""
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a null character
        raise FileRefused(path, "is not the path of a file") from None
    if not resolved.name:
        raise FileRefused(path, "is not the path of a file")
    return resolved


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(path: Path, error: OSError) -> FileRefused:
    if isinstance(error, BlockingIOError):
        return FileRefused(path, "another command is about to write it")
    return FileRefused(path, f"cannot be written: {error.strerror}")
