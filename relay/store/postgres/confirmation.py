"""A write without a row, so that the end of a statement says what is on disk, and on a standby.

After a crash the server shows commits that its standby may never have received. What is only read
is therefore no proof, but the commit of a later write waits for the standby to have all before it.
"""

from relay.store.postgres.driver import Database

WRITTEN = "SELECT pg_logical_emit_message(true, 'relay', '')"
"""Part of a statement that would otherwise only read; leaves no row behind."""


def confirm(db: Database) -> None:
    """Return once all that was visible before is as durable as the server promises."""
    db.execute(WRITTEN)
