"""The store as a whole: what is in it, and whether it is sound."""

from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.integrity import Inspection


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of the store."""

    async def check_store(_: object) -> Inspection:
        return await admin.inspections.inspect()

    return (
        Operation(
            method="GET",
            path="/api/v1/store/check",
            summary="The store read as a whole, beside the work: what is in it, and its faults.",
            handler=check_store,
            answer=Inspection,
        ),
    )
