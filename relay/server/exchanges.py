"""Requests and their responses, as the app behind a listener sees them."""

import asyncio
from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send

STATE = "relay.connection"

VERIFIED = "relay.verified"
"""Key of a function in a request's state, for the app to call once it knows who sent it.

What the connection holds then counts no longer as a stranger's, and does not give way to others.
"""


class ServedConnection(Protocol):
    """What a request's connection has to know of its response."""

    loop: asyncio.AbstractEventLoop
    is_kept: bool
    """Whether the request under way is that of an operator."""

    def verified(self) -> None:
        """Its sender is known."""
        ...

    def closes_after_response(self) -> bool:
        """Whether the response that begins now is the connection's last."""
        ...

    def response_complete(self) -> None:
        """Called before the response's last bytes are sent."""
        ...


def keep(scope: Scope) -> None:
    """Never evict the connection while this request lasts, even if its client reads slowly."""
    connection: ServedConnection | None = scope.get("state", {}).get(STATE)
    if connection is not None:
        connection.is_kept = True


class Exchanges:
    """The ASGI app around a listener's app: tells each connection when its response is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """Sent with every response."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the requests under way."""
        self.completed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: ServedConnection = scope["state"][STATE]
        scope["state"][VERIFIED] = connection.verified
        # With the loop, because looking for it costs a system call in CPython 3.11.
        task = cast("asyncio.Task[Any]", asyncio.current_task(connection.loop))
        self.tasks.add(task)

        complete = False

        async def observed_send(message: MutableMapping[str, Any]) -> None:
            nonlocal complete
            if message["type"] == "http.response.start":
                headers = [*self.headers, *message.get("headers", ())]
                if connection.closes_after_response():
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif not message.get("more_body"):
                # Before it is sent, because uvicorn may close the connection right after it.
                complete = True
                connection.response_complete()
            await send(message)

        try:
            await self._app(scope, receive, observed_send)
        finally:
            self.tasks.discard(task)
            self.completed += 1
            if not complete:
                connection.response_complete()
