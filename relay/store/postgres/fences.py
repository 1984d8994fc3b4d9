"""Proof of ownership: a relay settles deliveries of a sink only while it owns the sink."""

from typing import NamedTuple, Protocol
from uuid import UUID

HISTORY = "substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
"""The server's timeline, which each promotion of a standby changes; an error in recovery."""

GUARD = f"""
SELECT o.sink, o.fence FROM relay.ownership AS o
JOIN unnest(
    %(guarded)b::text[], %(holders)b::uuid[], %(histories)b::text[], %(fences)b::bigint[]
) AS f (sink, holder, history, fence)
    ON o.sink = f.sink AND o.holder = f.holder AND o.fence = f.fence
WHERE o.expires_at > clock_timestamp() AND f.history = {HISTORY}
ORDER BY o.sink FOR SHARE OF o
"""
"""The sinks that are still owned; a takeover waits until the statement has ended.

Whoever locks several of these rows does so by name, so that no two wait for each other.
"""


READ_GUARD = f"""
SELECT WHERE %(fence)s::bigint IS NULL OR EXISTS (
    SELECT 1 FROM relay.ownership
    WHERE sink = %(sink)s AND holder = %(holder)s::uuid AND fence = %(fence)s::bigint
        AND expires_at > clock_timestamp() AND {HISTORY} = %(history)s::text
)
"""
"""One row if the sink is still owned; a takeover does not wait for a read.

On another history numbers of events repeat, and what is known of those before is wrong.
"""


class NotOwned(Exception):
    """A read was refused, because another relay may own the sink."""


class Fence(NamedTuple):
    """One acquisition of a sink."""

    holder: UUID
    history: str
    """The timeline of the server that gave it."""
    number: int


class Fences(Protocol):
    """Sinks that this relay owns, and the proof."""

    def holds(self, sink: str) -> bool:
        """Whether this relay leases deliveries of the sink, or does the `MAINTENANCE`."""
        ...

    def fence(self, sink: str) -> Fence | None:
        """Return the present fence of an owned sink; None if no other relay can own it."""
        ...

    def lost(self, sink: str, fence: Fence) -> None:
        """Note that a read or a settlement was refused: the sink may have another owner."""
        ...
