"""A source's secret, rotated: what fits no secret meanwhile is kept until the new one is there."""

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
"""Long enough for an operator who was called away; what is kept is unverified, so no longer."""

Length = Annotated[int, Meta(ge=1_000, le=DURATION_MAX_MS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """One source."""

    name: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """For how long requests that fit no secret are kept."""

    duration_ms: Length


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationView:
    """How it goes with a source; `none` was never begun, or has expired."""

    source: str
    state: Literal["none", "armed", "over"]
    """An `armed` one keeps what fits no secret; of one that is `over`, only what waits is left."""
    begun_ms: int | None = None
    until_ms: int | None = None
    expires_ms: int | None = None
    """What waits is removed then."""
    kept: int = 0
    verified: int = 0
    """Of those kept, the ones that fitted a secret later, and were taken in."""
    duplicates: int = 0
    """Of those verified, the ones whose event was known already."""
    waiting: int = 0
    """Of those kept, the ones that fit no secret so far."""
    bytes: int = 0
    """What waits takes so much."""
    dropped: int = 0
    """What was not kept since the relay's start, because of a limit."""


class _Rotations:
    """What can be asked of rotations, and done to them."""

    def __init__(self, admin: AdminServices) -> None:
        self._admin = admin

    async def show_rotation(self, which: Which) -> RotationView:
        name = self._known(which)
        return self._view(name, await self._admin.rotations.state(name))

    async def begin_rotation(self, which: Which, beginning: Beginning) -> RotationView:
        name = self._known(which)
        duration = Duration(beginning.duration_ms)
        return self._view(name, await self._admin.rotations.begin(name, duration))

    async def finish_rotation(self, which: Which) -> RotationView:
        name = self._known(which)
        if await self._admin.rotations.state(name) is None:
            raise HTTPException(409, f"No rotation of {name} has been begun, or it has expired.")
        # The new secret may stand in a file that nobody has looked at since.
        await self._admin.reloads.reload()
        return self._view(name, await self._admin.rotations.finish(name))

    def _known(self, which: Which) -> str:
        if which.name not in self._admin.rotations.sources:
            raise HTTPException(404, f"There is no source {which.name} in the config.")
        return which.name

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
    """All that is done with rotations."""
    rotations = _Rotations(admin)
    path, absent = "/api/v1/sources/{name}/rotation", "There is no such source in the config."
    return (
        Operation(
            method="GET",
            path=path,
            summary="How the rotation of a source's secret goes.",
            handler=rotations.show_rotation,
            parameters=Which,
            answer=RotationView,
            problems={404: absent},
        ),
        Operation(
            method="POST",
            path=path,
            summary="Keep what fits no secret of the source for so long, or for longer.",
            handler=rotations.begin_rotation,
            parameters=Which,
            body=Beginning,
            answer=RotationView,
            problems={404: absent},
        ),
        Operation(
            method="POST",
            path=f"{path}/finish",
            summary="Read the config again, judge what was kept by it, and keep nothing more.",
            handler=rotations.finish_rotation,
            parameters=Which,
            answer=RotationView,
            problems={
                404: absent,
                409: "No rotation has been begun, or it has expired.",
                422: "The config was refused, for these faults; the rotation goes on.",
            },
        ),
    )
