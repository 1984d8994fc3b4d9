"""Google's access tokens: fetched once for all waiters, and renewed before they expire."""

import asyncio
import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from google.auth.credentials import with_scopes_if_required
from google.oauth2 import service_account

from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.errors import SinkError, Temporary
from relay.sinks.pubsub import credentials as google_credentials
from relay.sinks.pubsub.credentials import Load, Transport

REFRESH_EARLY_S = 225.0
"""Renewal time before expiry; a metadata server issues no new token much earlier."""
RETRY_S = 10.0
"""Pause between two attempts to renew a valid token."""
_HEADER = re.compile(r"[\x20-\x7e]+")
_CLOSE_S = 2.0
"""Time for a cancelled fetch to end."""


@dataclass(frozen=True, slots=True)
class Token:
    """Value of the Authorization header, with its expiry in seconds of the monotonic clock."""

    headers: Mapping[str, str] = field(repr=False)
    renew_at_s: float
    ends_at_s: float


class AccessTokens:
    """The current token of one sink, fetched once for all waiters."""

    def __init__(self, load: Load, clock: Clock, *, scope: str, timeout: Duration) -> None:
        self._load = load
        self._clock = clock
        self._scope = scope
        self._transport = Transport(timeout)
        self._credentials: Any = None
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token | SinkError] | None = None
        """A failed fetch stays here until a send has raised its error."""

    async def headers(self) -> Mapping[str, str]:
        """Return a valid token; raises Temporary or Misconfigured where there is none."""
        now_s, token = self._clock.monotonic(), self._token
        if token is None or now_s >= token.ends_at_s:
            token = await self._fetched()
        elif now_s >= token.renew_at_s:
            self._fetch()  # while this one is still valid
        return token.headers

    def forget(self, headers: Mapping[str, str]) -> None:
        """Drop a rejected token: the next one comes from freshly read credentials."""
        if self._token is not None and self._token.headers is headers:
            self._token = self._credentials = None

    async def close(self) -> None:
        self._transport.cancel()
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=_CLOSE_S)
        await self._transport.client.close()

    async def _fetched(self) -> Token:
        fetching = self._fetch()
        # A cancelled send leaves the fetch to the others.
        await asyncio.wait({fetching})
        if self._fetching is fetching:
            self._fetching = None
        outcome = fetching.result()
        if isinstance(outcome, Token):
            return outcome
        raise copy.copy(outcome)

    def _fetch(self) -> asyncio.Task[Token | SinkError]:
        if self._fetching is None:
            self._transport.loop = asyncio.get_running_loop()
            self._fetching = asyncio.create_task(self._renew())
        return self._fetching

    async def _renew(self) -> Token | SinkError:
        try:
            token = await asyncio.to_thread(self._refresh)
        except Exception as error:  # noqa: BLE001  every error goes to the waiting sends
            self._credentials = None
            now_s, last = self._clock.monotonic(), self._token
            if last is None or now_s >= last.ends_at_s:
                return google_credentials.classify(error)
            token = replace(last, renew_at_s=now_s + RETRY_S)
        self._token, self._fetching = token, None
        return token

    def _refresh(self) -> Token:
        """Runs in a thread, one at a time."""
        credentials = self._credentials or self._signing(self._load(self._transport))
        credentials.refresh(self._transport)
        self._credentials = credentials
        headers: dict[str, str] = {}
        credentials.apply(headers)
        if not all(_HEADER.fullmatch(value) for value in headers.values()):
            raise Temporary("no token: an answer that holds no usable token")
        now_s = self._clock.monotonic()
        left_s = _left_s(credentials.expiry, now_ms=self._clock.now_ms())
        return Token(headers, now_s + max(left_s - REFRESH_EARLY_S, left_s / 2), now_s + left_s)

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
