"""Who may use the admin listener: anyone for metrics and health, its token's bearer for more."""

import hmac
from collections.abc import Callable, Collection, Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.admin.problem import problem
from relay.settings import Secret


class Guard:
    """Lets a request through to the app, or answers it."""

    def __init__(
        self, app: ASGIApp, *, token: Callable[[], Secret | None], open_paths: Collection[str]
    ) -> None:
        """`token` is asked with every request, because a reload may change it."""
        self._app = app
        self._token = token
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return None
        token = self._token()
        if token is None or not token.reveal():
            return problem(404, "The admin API is off because [admin] token is not set.")
        if not hmac.compare_digest(_presented(scope["headers"]), token.reveal().encode()):
            return problem(401, "A bearer token is needed.", {"WWW-Authenticate": "Bearer"})
        return None


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the token of the one Authorization header, or nothing, which no token equals."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
