"""The lock of acceptances, which others share, against the few that must be alone."""

_CLASS = 8101
"""Tells this lock from other advisory locks."""

SHARED = f"pg_advisory_xact_lock_shared({_CLASS}, hashtext('relay.'))"
"""Held by each statement that inserts events, from before it draws their numbers to its commit."""

ALONE = f"SELECT pg_advisory_xact_lock({_CLASS}, hashtext('relay.'))"
"""Waits for the acceptances under way, and holds new ones up, to the end of the transaction."""
