"""The config read again, as SIGHUP does it, with the verdict as the answer."""

from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.config.changes import Changes

OPERATION = "reload_config"


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """The reload."""

    async def reload_config(_: object) -> Changes:
        return await admin.reloads.reload()

    return (
        Operation(
            method="POST",
            path="/-/reload",
            summary="Read the config again, and use it if it has no fault.",
            handler=reload_config,
            answer=Changes,
            result=Changes.paths,
            problems={422: "The new config was refused, for these faults; nothing has changed."},
        ),
    )
