"""The meaning of SQLite's errors for the store."""

from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreUnavailable

_NO_ROOM = frozenset({"SQLITE_FULL", "SQLITE_IOERR_SHMSIZE"})
_PERHAPS_NO_ROOM = frozenset({"SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN"})
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_BROKEN = {
    "SQLITE_CORRUPT": "is damaged",
    "SQLITE_NOTADB": "is damaged",
    "SQLITE_IOERR_READ": "cannot be read",
    "SQLITE_IOERR_SHORT_READ": "cannot be read",
    "SQLITE_IOERR_WRITE": "cannot be written",
    "SQLITE_IOERR_FSYNC": "cannot be written",
    "SQLITE_IOERR_TRUNCATE": "cannot be written",
    "SQLITE_READONLY": "cannot be written",
    "SQLITE_IOERR": "cannot be used",
    "SQLITE_CANTOPEN": "cannot be used",
    "SQLITE_PROTOCOL": "cannot be used",
}
"""By the beginning of the name; the first that matches."""


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
        return StoreUnavailable(f"another program holds the store's write lock ({code})")
    state = next((text for name, text in _BROKEN.items() if code.startswith(name)), None)
    return None if state is None else StoreBroken(f"the store {state} ({code})")


def may_lack_room(error: Exception) -> bool:
    """Whether an exceeded quota may be the cause, and SQLite has rolled back; not a failed sync.

    SQLite reports it as any I/O error; `disk.shortage` tells them apart.
    """
    return error_name(error) in _PERHAPS_NO_ROOM


def error_name(error: Exception) -> str:
    """Return SQLite's name of an error."""
    return getattr(error, "sqlite_errorname", type(error).__name__)
