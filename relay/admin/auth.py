"""Bearer authentication of the admin listener, with a delay that slows down guessing."""

import asyncio
import hmac
from collections.abc import Callable, Collection, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.admin.problem import problem
from relay.core.config_values import Secret

FREE_FAILURES = 3
"""Wrong tokens that are refused at once; later ones wait for the penalty."""

PENALTY_S = 0.5
"""Time per refusal, one at a time: two guesses a second, from any number of clients."""

WAITING_MAX = 64
"""Requests with a wrong token that wait at once; more get a 429."""


class BearerAuth:
    """Passes a request to the app, or refuses it; the right token never waits."""

    def __init__(
        self, app: ASGIApp, *, token: Callable[[], Secret | None], open_paths: Collection[str]
    ) -> None:
        """`token` is called for every request, because a reload may change it."""
        self._app = app
        self._token = token
        self._open_paths = open_paths
        self._free_failures = FREE_FAILURES
        self._waiting = 0
        self._penalty_lock = asyncio.Lock()

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
            self._free_failures = FREE_FAILURES
            return None
        if self._waiting >= WAITING_MAX:
            return problem(429, "Too many wrong tokens.", {"Retry-After": "30"})
        await self._delay()
        return problem(401, "A bearer token is required.", {"WWW-Authenticate": "Bearer"})

    async def _delay(self) -> None:
        if self._free_failures > 0:
            self._free_failures -= 1
            return
        self._waiting += 1
        try:
            async with self._penalty_lock:
                await asyncio.sleep(PENALTY_S)
        finally:
            self._waiting -= 1


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the token of the only Authorization header, else b"", which equals no token."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
