"""The JSON API: one file per group of operations."""

from relay.admin.api import (
    absences,
    audience,
    audit,
    dead_letters,
    events,
    people,
    reconciliations,
    reload,
    replays,
    sinks,
    sources,
    statistics,
    status,
    store,
    stream,
    unreadable,
)

OPERATIONS = (
    *events.OPERATIONS,
    *dead_letters.OPERATIONS,
    *replays.OPERATIONS,
    *sinks.OPERATIONS,
    *reload.OPERATIONS,
    *sources.OPERATIONS,
    *people.OPERATIONS,
    *audience.OPERATIONS,
    *statistics.OPERATIONS,
    *status.OPERATIONS,
    *unreadable.OPERATIONS,
    *absences.OPERATIONS,
    *reconciliations.OPERATIONS,
    *audit.OPERATIONS,
    *store.OPERATIONS,
    *stream.OPERATIONS,
)
"""All operations of the API."""
