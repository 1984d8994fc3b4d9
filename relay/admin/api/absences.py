"""Absences of the relay, and their acknowledgement."""

from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, Paging
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.absences import Absence


class AbsenceId(msgspec.Struct, frozen=True, kw_only=True):
    """One absence."""

    id: Number


class AbsenceList(msgspec.Struct, frozen=True, kw_only=True):
    """One page, newest first."""

    absences: Sequence[Absence]
    next: int | None


async def list_absences(admin: AdminServices, page: Paging) -> AbsenceList:
    """Absences of the relay, and the losses that they caused."""
    absences = await admin.store.absences.newest(before=page.before, limit=page.limit + 1)
    shown, more = absences[: page.limit], len(absences) > page.limit
    return AbsenceList(absences=shown, next=shown[-1].id if more else None)


async def acknowledge_absence(admin: AdminServices, path: AbsenceId) -> Absence:
    """Acknowledge an absence, which ends the alerts on its loss."""
    absences = admin.store.absences
    absence = await absences.acknowledge(path.id, now_ms=admin.clock.now_ms())
    if absence is None:
        raise HTTPException(404, f"There is no absence {path.id}.")
    admin.metrics.outages.unacknowledged_loss(await absences.unacknowledged_loss_ms() / 1000)
    return absence


OPERATIONS = (
    Operation("GET", "/api/v1/absences", list_absences),
    Operation(
        "POST",
        "/api/v1/absences/{id:number}/acknowledge",
        acknowledge_absence,
        {404: "There is no such absence."},
    ),
)
