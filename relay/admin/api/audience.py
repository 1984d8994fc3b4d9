"""Counts of viewers and leads."""

from datetime import UTC, tzinfo
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict
from starlette.exceptions import HTTPException

from relay.admin.api.parameters import Number, Text, require_known
from relay.admin.operation import Operation
from relay.admin.services import AdminServices
from relay.store.audience import AudienceQuery, Funnel, Grouping

GROUPS_MAX = 10_000

Zone = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_+/-]*$")]


class AudienceFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects views and leads, and groups their counts."""

    by: Grouping = "video"
    since_ms: Number | None = None
    until_ms: Number | None = None
    source: Text | None = None
    video: Text | None = None
    zone: Zone | None = None
    """IANA name of the time zone of the days or hours, by default UTC; only with these."""
    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX)] = 1000


async def show_audience(admin: AdminServices, chosen: AudienceFilter) -> Funnel:
    """Viewers by milestone, and leads, by video, day, hour or source; people count once."""
    audience = admin.store.audience
    await require_known("source", chosen.source, admin.sources, audience.sources)
    return await audience.funnel(AudienceQuery(**asdict(chosen) | {"zone": _zone(chosen)}))


def time_zone(name: str) -> tzinfo:
    """Return the zone with an IANA name; raises HTTPException."""
    # Takes memory, and few requests name a zone.
    from zoneinfo import ZoneInfo  # noqa: PLC0415

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # A folder of zones, such as Europe, raises OSError.
        text = f"Unknown time zone {name}; use an IANA name such as Europe/Berlin."
        raise HTTPException(404, text) from None


OPERATIONS = (
    Operation(
        "GET",
        "/api/v1/audience",
        show_audience,
        {
            404: "There is no such source or time zone.",
            422: "A zone is given, but neither by=day nor by=hour.",
        },
    ),
)


def _zone(chosen: AudienceFilter) -> tzinfo:
    if chosen.zone is None:
        return UTC
    if chosen.by not in ("day", "hour"):
        raise HTTPException(
            422, "zone applies only to by=day and by=hour; drop it, or group by one of these."
        )
    return time_zone(chosen.zone)
