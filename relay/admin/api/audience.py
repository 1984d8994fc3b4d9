"""Viewers and leads, counted."""

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo

from msgspec import Meta
from starlette.exceptions import HTTPException

from relay.admin.api.filters import require_known
from relay.admin.api.parameters import Number, Text
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.audience import Funnel, Grouping, Question

GROUPS_MAX = 10_000

Zone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudienceFilter:
    """Which views and leads are counted, and how they are grouped."""

    by: Grouping = "video"
    since_ms: Number | None = None
    until_ms: Number | None = None
    source: Text | None = None
    video: Text | None = None
    zone: Zone | None = None
    """The IANA name of the time zone in which days begin, else UTC; for `by=day` only."""
    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX)] = 1000


def operations(admin: AdminServices) -> tuple[Operation, ...]:
    """What can be asked of the audience."""

    async def show_audience(asked: AudienceFilter) -> Funnel:
        sources = admin.rotations.sources
        await require_known("source", asked.source, sources, admin.audience.sources)
        question = Question(
            by=asked.by,
            since_ms=asked.since_ms,
            until_ms=asked.until_ms,
            source=asked.source,
            video=asked.video,
            zone=_zone(asked),
            limit=asked.limit,
        )
        return await admin.audience.funnel(question)

    return (
        Operation(
            method="GET",
            path="/api/v1/audience",
            summary="Viewers by milestone, and leads, by video, day or source; people once each.",
            handler=show_audience,
            parameters=AudienceFilter,
            answer=Funnel,
            problems={
                404: "There is no such source or time zone.",
                422: "There is a zone, and the groups are not days.",
            },
        ),
    )


def _zone(asked: AudienceFilter) -> tzinfo:
    if asked.zone is None:
        return UTC
    if asked.by != "day":
        raise HTTPException(422, "Only days have a time zone: zone needs by=day.")
    try:
        return ZoneInfo(asked.zone)
    except (KeyError, ValueError, OSError):
        # A folder of zones, such as Europe, is an OSError.
        text = f"There is no time zone {asked.zone}; try Europe/Berlin."
        raise HTTPException(404, text) from None
