"""The relay as a whole: which, since when, and the losses that nobody has acknowledged."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.downtime import Downtime
from relay.store.absences import Absence

SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Times are milliseconds since the epoch."""

    version: str
    now_ms: int
    started_ms: int
    draining: bool
    downtime: Downtime | None
    """Before this start; None at the first start of a store."""
    unacknowledged: Sequence[Absence]
    """The oldest absences that lost events and that no operator has acknowledged."""
    unacknowledged_loss_ms: int
    """The time from which events are lost, in all of them."""


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be asked of the relay itself."""

    async def show_status(_: object) -> Status:
        return Status(
            version=version("relay"),
            now_ms=admin.clock.now_ms(),
            started_ms=admin.started_ms,
            draining=admin.draining(),
            downtime=admin.downtime(),
            unacknowledged=await admin.absences.unacknowledged(limit=SHOWN),
            unacknowledged_loss_ms=await admin.absences.unacknowledged_loss_ms(),
        )

    return (
        Operation(
            method="GET",
            path="/api/v1/status",
            summary="Which relay this is, since when, and what it lost while it was away.",
            handler=show_status,
            answer=Status,
        ),
    )
