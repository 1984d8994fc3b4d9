"""Reading of rows of either engine: events, their bodies, and steps that are bounded by size."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from relay.core import foreign_json
from relay.core.event import Event

Row = tuple[Any, ...]

ORIGINAL, RECONSTRUCTED, SUPERSEDED = 0, 1, 2
"""Values of the column `reconstructed` of events."""

ERASED = "erased-"
"""Beginning of the ids that an erasure puts in the place of others."""

EVENT = "e.source, e.id, e.kind, e.created_at, e.received_at, e.body, e.headers, e.reconstructed"
"""Columns of `event_of`."""


def event_of(row: Sequence[Any]) -> Event:
    """Make an event from the columns of `EVENT`."""
    source, event_id, kind, created_at, received_ms, body, headers, reconstructed = row
    return Event(
        source=source,
        id=event_id,
        kind=kind,
        created_at=created_at,
        received_ms=received_ms,
        body=body,
        headers=headers,
        reconstructed=bool(reconstructed),
    )


def within_bytes(rows: Iterable[Row], limit: int, size: Callable[[Row], int]) -> Iterator[Row]:
    """Yield rows until their sizes reach the limit, so one at least."""
    total = 0
    for row in rows:
        yield row
        total += size(row)
        if total >= limit:
            return


def document_of(body: bytes | None) -> dict[str, Any] | None:
    """Decode a body; None for one that is gone, or is no JSON object."""
    try:
        document = None if body is None else foreign_json.decode(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def digest(body: bytes) -> bytes:
    """Return the digest that is stored with a body."""
    return hashlib.sha256(body).digest()


def is_damaged(body: bytes | None, received: bytes) -> bool:
    """Whether the body differs from the received one, by its digest; None has expired."""
    return body is not None and digest(body) != received
