"""The relay as a whole: which, since when, and whether it was away before."""

from dataclasses import dataclass
from importlib.metadata import version

from relay.admin.control import Admin
from relay.admin.operation import Operation
from relay.downtime import Downtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Times are milliseconds since the epoch."""

    version: str
    now_ms: int
    started_ms: int
    draining: bool
    downtime: Downtime | None
    """Before this start; None at the first start of a store."""


def operations(admin: Admin) -> tuple[Operation, ...]:
    """What can be asked of the relay itself."""

    async def show_status(_: object) -> Status:
        return Status(
            version=version("relay"),
            now_ms=admin.clock.now_ms(),
            started_ms=admin.started_ms,
            draining=admin.draining(),
            downtime=admin.downtime(),
        )

    return (
        Operation(
            method="GET",
            path="/api/v1/status",
            summary="Which relay this is, since when, and how long it was away before.",
            handler=show_status,
            answer=Status,
        ),
    )
