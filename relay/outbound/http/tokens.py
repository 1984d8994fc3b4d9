"""Access tokens of one sink: fetched once for all waiters, and renewed before they expire."""

import asyncio
import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from relay.core import timeouts
from relay.core.clock import Clock
from relay.core.errors import SinkError

REFRESH_EARLY_S = 225.0
"""Renewal time before expiry; Google's metadata server issues no new token much earlier."""
RETRY_S = 10.0
"""Pause between two attempts to renew a valid token."""
_HEADER = re.compile(r"[\x20-\x7e]+")
_CLOSE_S = 2.0
"""Time for a cancelled fetch to end."""


@dataclass(frozen=True, slots=True)
class Token:
    """The headers that carry a token, and its expiry in seconds of the monotonic clock."""

    headers: Mapping[str, str] = field(repr=False)
    renew_at_s: float
    ends_at_s: float

    @classmethod
    def lasting(cls, headers: Mapping[str, str], *, now_s: float, left_s: float) -> Self:
        """Renew it early, but a short-lived one not before half of its life."""
        return cls(headers, now_s + max(left_s - REFRESH_EARLY_S, left_s / 2), now_s + left_s)

    @property
    def is_sendable(self) -> bool:
        return all(_HEADER.fullmatch(value) for value in self.headers.values())


class AccessTokens(ABC):
    """The current token of one sink, fetched once for all waiters."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token | SinkError] | None = None
        """A failed fetch stays here until a send has raised its error."""

    @abstractmethod
    async def _request(self) -> Token:
        """Get a new token, within a time limit."""

    @abstractmethod
    def _classify(self, error: Exception) -> SinkError:
        """Explain what a request has raised."""

    @abstractmethod
    def _cancel(self) -> None:
        """End the request under way, which then raises; there may be none."""

    def _distrust(self) -> None:  # noqa: B027  not every kind keeps credentials
        """Read credentials anew for the next request: a token was rejected, or a request failed."""

    async def headers(self) -> Mapping[str, str]:
        """Return a valid token; raises Temporary or Misconfigured where there is none."""
        now_s, token = self._clock.monotonic(), self._token
        if token is None or now_s >= token.ends_at_s:
            token = await self._fetched()
        elif now_s >= token.renew_at_s:
            self._fetch()  # while this one is still valid
        return token.headers

    def forget(self, headers: Mapping[str, str]) -> None:
        """Drop a rejected token, unless another one has replaced it already."""
        if self._token is not None and self._token.headers is headers:
            self._token = None
            self._distrust()

    async def close(self) -> None:
        """End a fetch under way; may be called twice."""
        self._cancel()
        if self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=_CLOSE_S)

    async def _fetched(self) -> Token:
        fetching = self._fetch()
        timeouts.restart()
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
            self._fetching = asyncio.create_task(self._renew())
        return self._fetching

    async def _renew(self) -> Token | SinkError:
        try:
            token = await self._request()
        except Exception as error:  # noqa: BLE001  every error goes to the waiting sends
            self._distrust()
            now_s, last = self._clock.monotonic(), self._token
            if last is None or now_s >= last.ends_at_s:
                failure = self._classify(error)
                failure.unsent = True
                return failure
            token = replace(last, renew_at_s=now_s + RETRY_S)
        self._token, self._fetching = token, None
        return token
