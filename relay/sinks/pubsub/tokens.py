"""Google's access tokens: fetched once for all who wait, renewed before they end."""

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
"""A token is renewed so long before its end: a metadata server gives no new one much earlier."""
AGAIN_S = 10.0
"""Between two attempts to renew a token that is still good."""
FAREWELL_S = 2.0


@dataclass(frozen=True, slots=True)
class Token:
    """What goes into a request's head, and until when, in seconds of the monotonic clock."""

    headers: Mapping[str, str] = field(repr=False)
    renew_at_s: float
    ends_at_s: float


class Tokens:
    """The current token of one sink, fetched once for all who wait for it."""

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
        """Raises Temporary or Misconfigured where no token is to be had."""
        now_s = self._clock.monotonic()
        if self._token is None or now_s >= self._token.ends_at_s:
            return (await self._wait()).headers
        if now_s >= self._token.renew_at_s:
            self._fetch()  # while this one is still good
        return self._token.headers

    def forget(self, headers: Mapping[str, str]) -> None:
        """Take note that a token was not accepted: the next comes from credentials read anew."""
        if self._token is not None and self._token.headers is headers:
            self._token = self._credentials = None

    async def close(self) -> None:
        self._asker.close()
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=FAREWELL_S)
        await self._asker.client.aclose()

    async def _wait(self) -> Token:
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold
        fetching = self._fetch()
        self._waiting += 1
        try:
            # A send that is cancelled here leaves the fetch to the others.
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
            # Whoever asked has run out of time, and so would the next one.
            self._untold = outcome

    async def _try(self) -> Token | SinkError:
        try:
            return await asyncio.to_thread(self._refresh)
        except Exception as error:  # noqa: BLE001  those who wait have to know, whatever it is
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
            # It signs its own tokens: nobody has to be asked for them (Google's AIP-4111).
            return scoped.with_always_use_jwt_access(always_use_jwt_access=True)
        return scoped


def _left_s(expiry: datetime | None, *, now_ms: int) -> float:
    if expiry is None:
        return math.inf
    # The library's times are UTC, without saying so.
    return expiry.replace(tzinfo=UTC).timestamp() - now_ms / 1000
