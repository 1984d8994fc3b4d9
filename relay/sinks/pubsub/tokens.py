"""Google's access tokens."""

import asyncio
import math
from datetime import UTC, datetime
from typing import Any

from google.auth.credentials import with_scopes_if_required
from google.oauth2 import service_account

from relay.core.clock import Clock
from relay.core.errors import SinkError, Temporary
from relay.outbound.http import tokens
from relay.sinks.pubsub import credentials as google_credentials
from relay.sinks.pubsub.credentials import Load, Transport


class GoogleTokens(tokens.AccessTokens):
    """Tokens by Google's own library, which also signs some of them itself."""

    def __init__(self, load: Load, clock: Clock, *, scope: str, transport: Transport) -> None:
        super().__init__(clock)
        self._load = load
        self._scope = scope
        self._transport = transport
        self._credentials: Any = None

    async def close(self) -> None:
        await super().close()
        await self._transport.close()

    def _cancel(self) -> None:
        self._transport.cancel()

    def _distrust(self) -> None:
        self._credentials = None

    def _classify(self, error: Exception) -> SinkError:
        return google_credentials.classify(error)

    async def _request(self) -> tokens.Token:
        self._transport.loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._refresh)

    def _refresh(self) -> tokens.Token:
        """Runs in a thread, one at a time."""
        credentials = self._credentials or self._signing(self._load(self._transport))
        credentials.refresh(self._transport)
        self._credentials = credentials
        headers: dict[str, str] = {}
        credentials.apply(headers)
        left_s = _left_s(credentials.expiry, now_ms=self._clock.now_ms())
        token = tokens.Token.lasting(headers, now_s=self._clock.monotonic(), left_s=left_s)
        if not token.is_sendable:
            raise Temporary("no token: an answer that holds no usable token")
        return token

    def _signing(self, credentials: Any) -> Any:
        scoped = with_scopes_if_required(credentials, [self._scope])
        if isinstance(scoped, service_account.Credentials):
            # It signs its own tokens, without a request (Google's AIP-4111).
            return scoped.with_always_use_jwt_access(always_use_jwt_access=True)
        return scoped


def _left_s(expiry: datetime | None, *, now_ms: int) -> float:
    if expiry is None:
        return math.inf
    # The library's times are naive, in UTC.
    return expiry.replace(tzinfo=UTC).timestamp() - now_ms / 1000
