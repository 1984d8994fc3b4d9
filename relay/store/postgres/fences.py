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
FOR SHARE OF o
"""
"""The sinks that are still owned; a takeover waits until the statement has ended."""


class Fence(NamedTuple):
    """One acquisition of a sink."""

    holder: UUID
    history: str
    """The timeline of the server that gave it."""
    number: int


class Fences(Protocol):
    """Sinks that this relay owns, and the proof."""

    def holds(self, sink: str) -> bool:
        """Whether this relay leases and counts deliveries of the sink.

        Exactly one relay owns a sink that none is configured for.
        """
        ...

    def fence(self, sink: str) -> Fence | None:
        """Return the present fence of an owned sink; None if no other relay can own it."""
        ...

    def lost(self, sink: str, fence: Fence) -> None:
        """Note that a settlement was refused, because the sink has another owner."""
        ...
