"""The meaning of SQLite's errors for the store."""

from relay.core.errors import StoreBroken, StoreError, StoreFull

_NO_ROOM = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"})
_PERHAPS_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN"})
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_BROKEN = ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")


def classify(error: Exception) -> StoreError | None:
    """Return what an error means for the whole store; None if only an item failed.

    A transaction that ran out of space is rolled back.
    After any other I/O error the kernel may have dropped pages that it could not write
    (sqlite.md, section 1), so a retry in this process would prove nothing.
    """
    if isinstance(error, StoreError):
        return error
    code = error_name(error)
    if code in _NO_ROOM:
        return StoreFull(f"the disk is full ({code})")
    if code.startswith(_BUSY):
        return StoreError(f"another program holds the store's write lock ({code})")
    if code.startswith(_DAMAGED):
        return StoreBroken(f"the store is damaged ({code})")
    if code.startswith(_BROKEN):
        return StoreBroken(f"the store cannot be written ({code})")
    return None


def may_lack_room(error: Exception) -> bool:
    """Whether an exceeded quota may be the cause, and SQLite has rolled back; not a failed sync.

    SQLite reports it as any I/O error; `disk.shortage` tells them apart.
    """
    return error_name(error) in _PERHAPS_NO_ROOM


def error_name(error: Exception) -> str:
    """Return SQLite's name of an error."""
    return getattr(error, "sqlite_errorname", type(error).__name__)
