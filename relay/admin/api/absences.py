"""When the relay was away, and the operator's note of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, Paging
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.absences import Absence


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One absence."""

    id: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceList:
    """One page, the newest first."""

    absences: Sequence[Absence]
    next: int | None


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of absences, and done about them."""

    async def list_absences(page: Paging) -> AbsenceList:
        found = await admin.absences.newest(before=page.before, limit=page.limit)
        return AbsenceList(absences=found, next=found[-1].id if len(found) == page.limit else None)

    async def acknowledge_absence(which: Which) -> Absence:
        found = await admin.absences.acknowledge(which.id, now_ms=admin.clock.now_ms())
        if found is None:
            raise HTTPException(404, f"There is no absence {which.id}.")
        loss_ms = await admin.absences.unacknowledged_loss_ms()
        admin.metrics.unacknowledged_loss(loss_ms / 1000)
        return found

    return (
        Operation(
            method="GET",
            path="/api/v1/absences",
            summary="When the relay was away, and what the sender gave up meanwhile.",
            handler=list_absences,
            parameters=Paging,
            answer=AbsenceList,
        ),
        Operation(
            method="POST",
            path="/api/v1/absences/{id:number}/acknowledge",
            summary="Take note of an absence, so that no alert speaks of its loss any more.",
            handler=acknowledge_absence,
            parameters=Which,
            answer=Absence,
            problems={404: "There is no such absence."},
        ),
    )
