"""The last event below which none is still being accepted.

`seq` is drawn before a commit, so that a smaller one can appear after a larger one. Whatever walks
forward over events takes its end from here.
"""

from relay.store.postgres.driver import Database

_CLASS = 8101
"""Tells this lock from other advisory locks."""

SHARED = f"pg_advisory_xact_lock_shared({_CLASS}, hashtext('relay.'))"
"""Held by each statement that inserts events, from before it draws their numbers to its commit."""

ALONE = f"SELECT pg_advisory_xact_lock({_CLASS}, hashtext('relay.'))"
"""Waits for the acceptances under way, and holds new ones up, to the end of the transaction."""

_EXCLUSIVE = f"""
WITH alone AS MATERIALIZED ({ALONE})
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM alone, relay.events_seq_seq
"""


def last_seq(db: Database) -> int:
    """Return the number of the last event; those up to it are committed or will never be.

    A read that begins afterwards sees them. Waits for the acceptances under way, and holds new
    ones up for that long. Not inside a transaction, which would hold them up to its end.
    """
    return int(db.execute(_EXCLUSIVE).fetchall()[0][0])
