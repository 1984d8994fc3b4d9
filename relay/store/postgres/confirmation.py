"""A write without a row, whose commit proves that all earlier commits are on the standby too.

After a crash, the server shows commits that its standby may never have received, so a read is no
proof of them.
"""

from relay.store.postgres.driver import Database

WRITTEN = "SELECT pg_logical_emit_message(true, 'relay', '')"
"""Part of a statement that would otherwise only read; leaves no row behind."""


def confirm(db: Database) -> None:
    """Return once all that was visible before is as durable as the server promises."""
    db.execute(WRITTEN)
