"""Placeholder of the stream."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from relay.admin.services import AdminServices

Topic = Literal["events", "deliveries", "sinks", "config", "changes"]


async def watch(admin: AdminServices, request: Request) -> Response:
    del admin, request
    return Response("", 503)
