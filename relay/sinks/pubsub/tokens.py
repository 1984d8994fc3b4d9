"""Google's access tokens: fetched once for all waiters, and renewed before they expire."""

import asyncio
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.auth.credentials import with_scopes_if_required
from google.oauth2 import service_account

from relay.core.clock import Clock
from relay.core.config_values import Duration
from relay.core.errors import SinkError
from relay.sinks.pubsub import credentials as google_credentials
from relay.sinks.pubsub.credentials import Asker, Load

EARLY_S = 225.0
"""Renewal time before expiry; a metadata server issues no new token much earlier."""
AGAIN_S = 10.0
"""Pause between two attempts to renew a valid token."""
FAREWELL_S = 2.0


@dataclass(frozen=True, slots=True)
class Token:
    """Value of the Authorization header, with its expiry in seconds of the monotonic clock."""

    headers: Mapping[str, str] = field(repr=False)
    renew_at_s: float
    ends_at_s: float


class Tokens:
    """The current token of one sink, fetched once for all waiters."""

    def __init__(self, load: Load, clock: Clock, *, scope: str, timeout: Duration) -> None:
        self._load = load
        self._clock = clock
        self._scope = scope
        self._asker = Asker(timeout)
        self._credentials: Any = None
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token | SinkError] | None = None
        self._waiting = 0
        self._untold: SinkError | None = None

    async def headers(self) -> Mapping[str, str]:
        """Return a valid token; raises Temporary or Misconfigured where there is none."""
        now_s = self._clock.monotonic()
        if self._token is None or now_s >= self._token.ends_at_s:
            return (await self._wait()).headers
        if now_s >= self._token.renew_at_s:
            self._fetch()  # while this one is still valid
        return self._token.headers

    def forget(self, headers: Mapping[str, str]) -> None:
        """Drop a rejected token: the next one comes from freshly read credentials."""
        if self._token is not None and self._token.headers is headers:
            self._token = self._credentials = None

    async def close(self) -> None:
        self._asker.close()
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=FAREWELL_S)
        await self._asker.client.close()

    async def _wait(self) -> Token:
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold
        fetching = self._fetch()
        self._waiting += 1
        try:
            # A cancelled send leaves the fetch to the other waiters.
            await asyncio.wait({fetching})
        finally:
            self._waiting -= 1
        outcome = fetching.result()
        if isinstance(outcome, Token):
            return outcome
        raise copy.copy(outcome)

    def _fetch(self) -> asyncio.Task[Token | SinkError]:
        if self._fetching is None:
            self._asker.loop = asyncio.get_running_loop()
            self._fetching = asyncio.create_task(self._try())
            self._fetching.add_done_callback(self._ended)
        return self._fetching

    def _ended(self, fetching: asyncio.Task[Token | SinkError]) -> None:
        self._fetching = None
        if fetching.cancelled():
            return
        outcome = fetching.result()
        now_s = self._clock.monotonic()
        if isinstance(outcome, Token):
            self._token = outcome
        elif self._token is not None and now_s < self._token.ends_at_s:
            again_s = now_s + AGAIN_S
            self._token = Token(self._token.headers, again_s, self._token.ends_at_s)
        elif not self._waiting:
            # The waiters have run out of time, and so would the next one.
            self._untold = outcome

    async def _try(self) -> Token | SinkError:
        try:
            return await asyncio.to_thread(self._refresh)
        except Exception as error:  # noqa: BLE001  every error goes to the waiters
            self._credentials = None
            return google_credentials.meaning(error)

    def _refresh(self) -> Token:
        """Runs in a thread, one at a time."""
        credentials = self._credentials or self._signing(self._load(self._asker))
        credentials.refresh(self._asker)
        self._credentials = credentials
        headers: dict[str, str] = {}
        credentials.apply(headers)
        now_s = self._clock.monotonic()
        left_s = _left_s(credentials.expiry, now_ms=self._clock.now_ms())
        return Token(headers, now_s + max(left_s - EARLY_S, left_s / 2), now_s + left_s)

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
