"""Sources: the rotation of a secret, and notes of changes to a webhook endpoint."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.core.config_values import Duration
from relay.store.quarantine import Rotation

DURATION_MAX_MS = 3_600_000
"""Longest rotation: time for an operator, but no longer, because the requests are unverified."""

Length = Annotated[int, Meta(ge=1_000, le=DURATION_MAX_MS)]


class SourceName(msgspec.Struct, frozen=True, kw_only=True):
    """One source."""

    name: Text


class RotationStart(msgspec.Struct, frozen=True, kw_only=True):
    """Time for which unverified requests are quarantined."""

    duration_ms: Length


class RotationView(msgspec.Struct, frozen=True, kw_only=True):
    """A source's rotation; `none` if it was never started, or has expired.

    Requests that match no secret are quarantined until the new one is set.
    """

    source: str
    state: Literal["none", "armed", "over"]
    """`armed` quarantines unverified requests; `over` only keeps those that it has."""
    begun_ms: int | None = None
    until_ms: int | None = None
    expires_ms: int | None = None
    """Time at which the waiting requests are removed."""
    kept: int = 0
    verified: int = 0
    """Kept requests that verified later, and were accepted."""
    duplicates: int = 0
    """Verified requests whose event was known already."""
    waiting: int = 0
    """Kept requests that have not verified yet."""
    bytes: int = 0
    """Total size of the waiting requests."""
    dropped: int = 0
    """Requests dropped since the relay's start, because of a limit."""


async def show_rotation(admin: AdminServices, path: SourceName) -> RotationView:
    """State of the rotation of a source's secret."""
    name = known_source(admin, path)
    return _view(admin, name, await admin.store.quarantine.rotation(name))


async def begin_rotation(
    admin: AdminServices, path: SourceName, start: RotationStart
) -> RotationView:
    """Start or extend a rotation, which quarantines unverified requests."""
    name = known_source(admin, path)
    return _view(admin, name, await admin.rotations.begin(name, Duration(start.duration_ms)))


async def finish_rotation(admin: AdminServices, path: SourceName) -> RotationView:
    """Reload the config, verify the quarantined requests, and end the rotation."""
    name = known_source(admin, path)
    if await admin.store.quarantine.rotation(name) is None:
        raise HTTPException(
            409, f"No rotation of {name} is running: it was not started, or has expired."
        )
    # The new secret may be in a file that has not been read yet.
    await admin.reloads.reload()
    return _view(admin, name, await admin.rotations.finish(name))


def known_source(admin: AdminServices, path: SourceName) -> str:
    """Return the name of a source of the config; raises HTTPException."""
    if path.name not in admin.sources:
        raise HTTPException(404, f"There is no source {path.name} in the config.")
    return path.name


def _view(admin: AdminServices, name: str, rotation: Rotation | None) -> RotationView:
    if rotation is None:
        return RotationView(source=name, state="none")
    state = rotation.state(admin.clock.now_ms())
    return RotationView(**asdict(rotation), state=state, dropped=admin.rotations.dropped(name))


class EndpointChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the endpoint at the video service."""

    change: Literal["registered", "removed"]
    endpoint: Text | None = None
    """Its id."""


class EndpointNote(EndpointChange, frozen=True, kw_only=True):
    """The note, which the audit log holds."""

    source: str


async def note_endpoint(
    admin: AdminServices, path: SourceName, change: EndpointChange
) -> EndpointNote:
    """Note that a source's webhook endpoint was registered or removed at the video service.

    After a removal the status says that nothing can arrive, until events come again.
    """
    name = known_source(admin, path)
    return EndpointNote(source=name, change=change.change, endpoint=change.endpoint)


_URL = "/api/v1/sources/{name}"
_MISSING = {404: "There is no such source in the config."}

OPERATIONS = (
    Operation("GET", f"{_URL}/rotation", show_rotation, _MISSING),
    Operation("POST", f"{_URL}/rotation", begin_rotation, _MISSING),
    Operation(
        "POST",
        f"{_URL}/rotation/finish",
        finish_rotation,
        _MISSING
        | {
            409: "No rotation is running: it was not started, or has expired.",
            422: "The config was refused because of these faults; the rotation continues.",
        },
    ),
    Operation("POST", f"{_URL}/endpoint", note_endpoint, _MISSING),
)
