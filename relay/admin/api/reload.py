"""Reload of the config, as SIGHUP does it, with the outcome in the response."""

from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.config.changes import Changes

OPERATION = "reload_config"


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the reload operation."""

    async def reload_config(_: object) -> Changes:
        return await admin.reloads.reload()

    return (
        Operation(
            method="POST",
            path="/-/reload",
            summary="Reload the config, and use it if it has no faults.",
            handler=reload_config,
            response=Changes,
            result=Changes.paths,
            problems={
                422: "The new config was refused because of these faults; nothing has changed."
            },
        ),
    )
