"""Bearer authentication of the admin listener, within the limits of wrong tokens."""

import hmac
from collections.abc import Callable, Collection, Sequence

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from relay.admin.clients import client_of
from relay.admin.guessing import GuessLimits
from relay.admin.problem import problem
from relay.core.clock import Clock
from relay.core.config_values import Network, Secret
from relay.server.exchanges import keep
from relay.telemetry import log


class BearerAuth:
    """Passes a request to the app, or refuses it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: Callable[[], Secret | None],
        trusted_proxies: Callable[[], Sequence[Network]],
        limits: GuessLimits,
        clock: Clock,
        open_paths: Collection[str],
    ) -> None:
        """The callables are called for every request, because a reload may change their values."""
        self._app = app
        self._token = token
        self._trusted_proxies = trusted_proxies
        self._limits = limits
        self._open_paths = open_paths
        self._log = log.Sampled(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            return None
        token = self._token()
        if token is None or not token.reveal():
            return problem(404, "The admin API is off because [admin] token is not set.")
        presented = _presented(scope["headers"])
        if not presented:
            return _unauthorized()
        client = client_of(HTTPConnection(scope), trusted_proxies=self._trusted_proxies())
        taken = self._limits.take(client, presented)
        if taken.wait_s:
            self._log.line("token.refused", reason="too_many", client=str(client.address))
            return problem(
                429,
                f"The token was not looked at: too many wrong ones came from this address, or from "
                f"all strangers. Try again in {taken.wait_s} s.",
                {"Retry-After": str(taken.wait_s)},
            )
        if hmac.compare_digest(presented, token.reveal().encode()):
            self._limits.right(taken, "admin")
            keep(scope)
            return None
        self._limits.wrong(taken)
        self._log.line("token.refused", reason="wrong", client=str(client.address))
        return _unauthorized()


def _unauthorized() -> Response:
    return problem(401, "A bearer token is required.", {"WWW-Authenticate": "Bearer"})


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the token of the only Authorization header, else b"", which equals no token."""
    values = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""
