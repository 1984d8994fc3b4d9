"""Rotation of a source's secret: unverified requests are quarantined until the new one is set."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.core.config_values import Duration
from relay.store.quarantine import Rotation

DURATION_MAX_MS = 3_600_000
"""Longest rotation: time for an operator, but no longer, because the requests are unverified."""

Length = Annotated[int, Meta(ge=1_000, le=DURATION_MAX_MS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceName:
    """One source."""

    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationStart:
    """Time for which unverified requests are quarantined."""

    duration_ms: Length


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationView:
    """A source's rotation; `none` if it was never started, or has expired."""

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


class _Rotations:
    """Handlers of the operations on rotations."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def show_rotation(self, path: SourceName) -> RotationView:
        name = self._known(path)
        return self._view(name, await self._admin.rotations.state(name))

    async def begin_rotation(self, path: SourceName, start: RotationStart) -> RotationView:
        name = self._known(path)
        duration = Duration(start.duration_ms)
        return self._view(name, await self._admin.rotations.begin(name, duration))

    async def finish_rotation(self, path: SourceName) -> RotationView:
        name = self._known(path)
        if await self._admin.rotations.state(name) is None:
            raise HTTPException(
                409, f"No rotation of {name} is running: it was not started, or has expired."
            )
        # The new secret may be in a file that has not been read yet.
        await self._admin.reloads.reload()
        return self._view(name, await self._admin.rotations.finish(name))

    def _known(self, path: SourceName) -> str:
        if path.name not in self._admin.rotations.sources:
            raise HTTPException(404, f"There is no source {path.name} in the config.")
        return path.name

    def _view(self, name: str, rotation: Rotation | None) -> RotationView:
        if rotation is None:
            return RotationView(source=name, state="none")
        return RotationView(
            source=name,
            state="armed" if self._admin.clock.now_ms() < rotation.until_ms else "over",
            begun_ms=rotation.begun_ms,
            until_ms=rotation.until_ms,
            expires_ms=rotation.expires_ms,
            kept=rotation.kept,
            verified=rotation.verified,
            duplicates=rotation.duplicates,
            waiting=rotation.waiting,
            bytes=rotation.bytes,
            dropped=self._admin.rotations.dropped(name),
        )


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """Return the operations on rotations."""
    rotations = _Rotations(admin)
    url, absent = "/api/v1/sources/{name}/rotation", "There is no such source in the config."
    return (
        Operation(
            method="GET",
            path=url,
            summary="State of the rotation of a source's secret.",
            handler=rotations.show_rotation,
            parameters=SourceName,
            response=RotationView,
            problems={404: absent},
        ),
        Operation(
            method="POST",
            path=url,
            summary="Start or extend a rotation, which quarantines unverified requests.",
            handler=rotations.begin_rotation,
            parameters=SourceName,
            body=RotationStart,
            response=RotationView,
            problems={404: absent},
        ),
        Operation(
            method="POST",
            path=f"{url}/finish",
            summary="Reload the config, verify the quarantined requests, and end the rotation.",
            handler=rotations.finish_rotation,
            parameters=SourceName,
            response=RotationView,
            problems={
                404: absent,
                409: "No rotation is running: it was not started, or has expired.",
                422: "The config was refused because of these faults; the rotation continues.",
            },
        ),
    )
