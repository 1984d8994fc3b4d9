"""A write without a row, whose commit proves that all earlier commits are on the standby too.

After a crash, the server shows commits that its standby may never have received, so a read is no
proof of them.
"""

from relay.store.postgres.driver import Query

WRITTEN = "SELECT pg_logical_emit_message(true, 'relay', '')"
"""Part of a statement that would otherwise only read; leaves no row behind."""


CONFIRM = Query(WRITTEN)
"""Once it is done, all that was visible before is as durable as the server promises."""
