"""Notes of changes to a source's webhook endpoint, which the video service does not report."""

from typing import Literal

import msgspec

from relay.admin.api.parameters import Text
from relay.admin.api.rotation import SourceName, known_source
from relay.admin.operation import Operation
from relay.admin.services import AdminServices


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


OPERATIONS = (
    Operation(
        "POST",
        "/api/v1/sources/{name}/endpoint",
        note_endpoint,
        {404: "There is no such source in the config."},
    ),
)
