"""Reload of the config, as SIGHUP does it, with the outcome in the response."""

from collections.abc import Sequence

from msgspec.structs import asdict

from relay.admin.operation import Nothing, Operation
from relay.admin.services import AdminServices
from relay.config.changes import Changes
from relay.config.secret_checks import expired
from relay.core.errors import Fault


class Reloaded(Changes, frozen=True, kw_only=True):
    """The changes, and the mistakes and warnings of the config that is in use now."""

    mistakes: Sequence[Fault]
    """What the next release refuses."""
    warnings: Sequence[Fault]


async def reload_config(admin: AdminServices, _: Nothing) -> Reloaded:
    """Reload the config, and use it if it has no faults."""
    changes = await admin.reloads.reload()
    config = admin.config()
    return Reloaded(
        **asdict(changes),
        mistakes=config.mistakes,
        warnings=[*config.warnings, *expired(config.sources, now_ms=admin.clock.now_ms())],
    )


RELOAD = Operation(
    "POST",
    "/-/reload",
    reload_config,
    {422: "The new config was refused because of these faults; nothing has changed."},
    result=Changes.paths,
)
OPERATIONS = (RELOAD,)
