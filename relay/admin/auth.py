"""Who may use the admin listener: anyone for metrics and health, its token's bearer for more."""

import asyncio
import hmac
from collections.abc import Callable, Collection, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.admin.problem import problem
from relay.core.config_values import Secret

PATIENCE = 3
"""Wrong tokens that are told so at once; the ones after them wait their turn."""

PENALTY_S = 0.5
"""One wrong token is answered in so much time: two guesses a second, from however many sides."""

WAITING_MAX = 64


class BearerAuth:
    """Lets a request through to the app, or answers it; the right token never waits."""

    def __init__(
        self, app: ASGIApp, *, token: Callable[[], Secret | None], open_paths: Collection[str]
    ) -> None:
        """`token` is asked with every request, because a reload may change it."""
        self._app = app
        self._token = token
        self._open_paths = open_paths
        self._patience = PATIENCE
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return None
        token = self._token()
        if token is None or not token.reveal():
            return problem(404, "The admin API is off because [admin] token is not set.")
        if hmac.compare_digest(_presented(scope["headers"]), token.reveal().encode()):
            self._patience = PATIENCE
            return None
        if self._waiting >= WAITING_MAX:
            return problem(429, "Too many wrong tokens.", {"Retry-After": "30"})
        await self._wait()
        return problem(401, "A bearer token is needed.", {"WWW-Authenticate": "Bearer"})

    async def _wait(self) -> None:
        if self._patience > 0:
            self._patience -= 1
            return
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(PENALTY_S)
        finally:
            self._waiting -= 1


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the token of the one Authorization header, or nothing, which no token equals."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
