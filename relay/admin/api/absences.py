"""Absences of the relay, and their acknowledgement."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, Paging
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.absences import Absence


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceId:
    """One absence."""

    id: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceList:
    """One page, newest first."""

    absences: Sequence[Absence]
    next: int | None


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on absences."""

    async def list_absences(page: Paging) -> AbsenceList:
        absences = await admin.absences.newest(before=page.before, limit=page.limit)
        more = len(absences) == page.limit
        return AbsenceList(absences=absences, next=absences[-1].id if more else None)

    async def acknowledge_absence(path: AbsenceId) -> Absence:
        absence = await admin.absences.acknowledge(path.id, now_ms=admin.clock.now_ms())
        if absence is None:
            raise HTTPException(404, f"There is no absence {path.id}.")
        loss_ms = await admin.absences.unacknowledged_loss_ms()
        admin.metrics.unacknowledged_loss(loss_ms / 1000)
        return absence

    return (
        Operation(
            method="GET",
            path="/api/v1/absences",
            summary="Absences of the relay, and the losses that they caused.",
            handler=list_absences,
            parameters=Paging,
            response=AbsenceList,
        ),
        Operation(
            method="POST",
            path="/api/v1/absences/{id:number}/acknowledge",
            summary="Acknowledge an absence, which ends the alerts on its loss.",
            handler=acknowledge_absence,
            parameters=AbsenceId,
            response=Absence,
            problems={404: "There is no such absence."},
        ),
    )
