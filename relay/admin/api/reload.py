"""Reload of the config, as SIGHUP does it, with the outcome in the response."""

from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.config.changes import Changes


async def reload_config(admin: AdminServices, _: Nothing) -> Changes:
    """Reload the config, and use it if it has no faults."""
    return await admin.reloads.reload()


RELOAD = Operation(
    "POST",
    "/-/reload",
    reload_config,
    {422: "The new config was refused because of these faults; nothing has changed."},
    result=Changes.paths,
)
OPERATIONS = (RELOAD,)
