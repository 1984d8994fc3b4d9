"""Inspection of the whole store."""

from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.integrity import Inspection


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operation on the store."""

    async def check_store(_: object) -> Inspection:
        return await admin.inspections.inspect()

    return (
        Operation(
            method="GET",
            path="/api/v1/store/check",
            summary="Read the whole store while the relay runs; returns its contents and faults.",
            handler=check_store,
            response=Inspection,
        ),
    )
