"""The JSON API: one file per group of operations."""

from relay.admin.api import (
    absences,
    audience,
    audit,
    dead_letters,
    endpoint,
    events,
    people,
    reconciliations,
    reload,
    replays,
    rotation,
    sinks,
    statistics,
    status,
    store,
    unreadable,
)

__all__ = ["OPERATIONS"]

OPERATIONS = (
    *events.OPERATIONS,
    *dead_letters.OPERATIONS,
    *replays.OPERATIONS,
    *sinks.OPERATIONS,
    *reload.OPERATIONS,
    *rotation.OPERATIONS,
    *endpoint.OPERATIONS,
    *people.OPERATIONS,
    *audience.OPERATIONS,
    *statistics.OPERATIONS,
    *status.OPERATIONS,
    *unreadable.OPERATIONS,
    *absences.OPERATIONS,
    *reconciliations.OPERATIONS,
    *audit.OPERATIONS,
    *store.OPERATIONS,
)
"""All operations of the API."""
