"""The meaning of a failed start: what an operator has to change, and what only takes time.

libpq gives no SQLSTATE for a connection that fails, only a text, which holds no password.
"""

import re

from relay.core.errors import StoreBroken, StoreError, StoreRefused, StoreUnavailable
from relay.store.postgres.driver import psycopg
from relay.store.postgres.errors import classify, error_name

_OPENING = re.compile(r"^- host: .*?, hostaddr: '.*?': |connection failed: |(?<=: )FATAL: +")
"""What says nothing to an operator."""

_ADVICE = (
    (r"password|authentication|no pg_hba.conf entry", "see user and password in store.dsn"),
    (r"not permitted to log in", "run ALTER ROLE ... LOGIN"),
    (r"certificate|SSL was required|SSL error:", "see host, sslmode and sslrootcert in store.dsn"),
    (r'(?:database|role) ".*" does not exist', "create it, or name another in store.dsn"),
    (r"permission denied", "run GRANT CONNECT ON DATABASE"),
)
"""What to do by what the text says; every other failure may pass."""


def startup_error(error: psycopg.Error) -> StoreError:
    """Return what an error of a start means."""
    if error.sqlstate is not None:
        return classify(error) or StoreBroken(
            f"the store cannot be opened: {type(error).__name__} ({error_name(error)})"
        )
    causes = _causes(str(error))
    advice = [_advice(cause) for cause in causes]
    # While one of several hosts is away, it may be the one that would take the relay.
    if all(advice):
        return StoreRefused(f"the database refuses the relay: {causes[0]}; {advice[0]}")
    return StoreUnavailable(f"the database cannot be reached: {'; '.join(dict.fromkeys(causes))}")


def _causes(text: str) -> list[str]:
    """Return the cause of each host, one line each."""
    lines = [line.strip() for line in text.splitlines()]
    hosts = [line for line in lines if line.startswith("- host")]
    return [_OPENING.sub("", line) or "no reason given" for line in (hosts or lines[:1])]


def _advice(cause: str) -> str | None:
    return next((text for pattern, text in _ADVICE if re.search(pattern, cause)), None)
