"""The JSON API: one file per group of operations."""

from relay.admin.api import (
    absences,
    audience,
    audit,
    dead_letters,
    events,
    people,
    reload,
    replays,
    rotation,
    sinks,
    status,
    store,
    unreadable,
)
from relay.admin.operation import Operation
from relay.admin.readiness import Readiness
from relay.admin.services import AdminServices

__all__ = ["operations"]


def operations(admin: AdminServices, readiness: Readiness) -> tuple[Operation, ...]:
    """Return all operations of the API."""
    return (
        *events.operations(admin),
        *dead_letters.operations(admin),
        *replays.operations(admin),
        *sinks.operations(admin),
        *reload.operations(admin),
        *rotation.operations(admin),
        *people.operations(admin),
        *audience.operations(admin),
        *status.operations(admin, readiness),
        *unreadable.operations(admin),
        *absences.operations(admin),
        *audit.operations(admin),
        *store.operations(admin),
    )
