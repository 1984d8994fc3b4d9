"""The meaning of PostgreSQL's errors for the store."""

import psycopg

from relay.core.errors import StoreError, StoreFull, StoreUnavailable

_FULL = frozenset({"53100", "53200"})
"""disk_full, out_of_memory."""
_ELSEWHERE = {
    "25006": "it is read-only: another server is the primary now",
    "57P03": "it is starting, stopping or in recovery",
}
_COLLIDED = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected."""
_AGAIN = _COLLIDED | {"55P03"}
"""lock_not_available too."""


class OutcomeUnknown(Exception):
    """A commit that the server reported as done may be missing on its standby."""


def classify(error: Exception) -> StoreError | None:
    """Return what an error means for the whole store; None if only an item failed."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OutcomeUnknown):
        return StoreUnavailable("whether a write was committed is unknown")
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate
    if code in _FULL:
        return StoreFull(f"the database has no room ({code})")
    if code in _ELSEWHERE:
        return StoreUnavailable(f"the database does not write: {_ELSEWHERE[code]} ({code})")
    if code in _AGAIN:
        return StoreUnavailable(f"another transaction was in the way ({code})")
    if is_connection_lost(error):
        return StoreUnavailable(f"the connection to the database was lost ({error_name(error)})")
    return None


def may_succeed_again(error: Exception) -> bool:
    """Whether the server rolled a transaction back only because of another one."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _COLLIDED


def is_connection_lost(error: Exception) -> bool:
    """Whether the connection is gone, so that the outcome of a write is unknown."""
    if isinstance(error, OutcomeUnknown):
        return True
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    code = error.sqlstate
    return code is None or code.startswith(("08", "57P", "58"))


def error_name(error: Exception) -> str:
    """Return the SQLSTATE of an error, or the name of its class: texts may hold values."""
    return getattr(error, "sqlstate", None) or type(error).__name__
