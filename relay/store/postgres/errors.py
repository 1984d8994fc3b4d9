"""The meaning of PostgreSQL's errors: for the store that runs, and for one that is being opened."""

import re

import psycopg

from relay.core.errors import StoreBroken, StoreError, StoreFull, StoreRefused, StoreUnavailable

_FULL = frozenset({"53100", "53200"})
"""disk_full, out_of_memory."""
_ELSEWHERE = {
    "25006": "it is read-only: another server is the primary now",
    "57P03": "it is starting, stopping or in recovery",
}
_COLLIDED = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected."""
_CANCELLED = "57014"
_AGAIN = _COLLIDED | {"55P03"}
"""lock_not_available too."""

_OPENING = re.compile(r"^- host: .*?, hostaddr: '.*?': |connection failed: |(?<=: )FATAL: +")
"""What says nothing to an operator."""

_ADVICE = (
    (r"password|authentication|no pg_hba.conf entry", "see user and password in store.dsn"),
    (r"not permitted to log in", "run ALTER ROLE ... LOGIN"),
    (r"certificate|SSL was required|SSL error:", "see host, sslmode and sslrootcert in store.dsn"),
    (r'(?:database|role) ".*" does not exist', "create it, or name another in store.dsn"),
    (r"permission denied", "run GRANT CONNECT ON DATABASE"),
    (r"^array_nulls is off", "run ALTER ROLE ... RESET array_nulls, or the same of the database"),
)
"""What to do by what the text says; every other failure may pass."""


class OutcomeUnknown(Exception):
    """A commit that the server reported as done may be missing on its standby."""


class CannotConnect(psycopg.OperationalError):
    """No connection could be made; the text is the server's or libpq's, and holds no password."""


def classify(error: Exception) -> StoreError | None:
    """Return what an error means for the whole store; None if only an item failed."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OutcomeUnknown):
        return StoreUnavailable("whether a write was committed is unknown")
    if not isinstance(error, psycopg.Error):
        return None
    if isinstance(error, CannotConnect):
        return StoreUnavailable(str(startup_error(error)))
    code = error.sqlstate
    if code in _FULL:
        return StoreFull(f"the database has no room ({code})")
    if code in _ELSEWHERE:
        return StoreUnavailable(f"the database does not write: {_ELSEWHERE[code]} ({code})")
    if code in _AGAIN:
        return StoreUnavailable(f"another transaction was in the way ({code})")
    if code == _CANCELLED:
        return StoreUnavailable(
            f"the server cancelled a statement, as statement_timeout does ({code})"
        )
    if is_connection_lost(error):
        return StoreUnavailable(f"the connection to the database was lost ({error_name(error)})")
    return None


def startup_error(error: psycopg.Error) -> StoreError:
    """Return what an error of a start means: what an operator has to change, or only takes time."""
    if not isinstance(error, CannotConnect):
        return classify(error) or StoreBroken(
            f"the store cannot be opened: {type(error).__name__} ({error_name(error)})"
        )
    causes = _causes(str(error))
    advice = [_advice(cause) for cause in causes]
    # While one of several hosts is away, it may be the one that would take the relay.
    if all(advice):
        return StoreRefused(f"the database refuses the relay: {causes[0]}; {advice[0]}")
    return StoreUnavailable(f"the database cannot be reached: {'; '.join(dict.fromkeys(causes))}")


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


def _causes(text: str) -> list[str]:
    """Return the cause of each host, one line each."""
    lines = [line.strip() for line in text.splitlines()]
    hosts = [line for line in lines if line.startswith("- host")]
    return [_OPENING.sub("", line) or "no reason given" for line in (hosts or lines[:1])]


def _advice(cause: str) -> str | None:
    return next((text for pattern, text in _ADVICE if re.search(pattern, cause)), None)
