"""Sends the security headers with every response."""

from contextlib import suppress

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay.admin.page.access.address import Refusal
from relay.admin.page.access.control import AccessControl
from relay.admin.page.access.headers import SECURITY_HEADERS


def secured(app: ASGIApp, access: AccessControl) -> ASGIApp:
    """Add the security headers to every response, which keeps its own Cache-Control.

    Routes are below the prefix of a proxy, whether it strips that or not.
    """

    async def with_headers(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Refusal):
            scope["root_path"] = prefix = access.place(Request(scope)).prefix
            if prefix and scope["path"] == prefix:
                scope["path"] += "/"  # else it has no route

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_secured)

    return with_headers
