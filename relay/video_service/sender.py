"""A sender that behaves like the video service, for trials, the demo and tests.

Rules: video-service.md, section 6 (Request, Delivery rules, Signature).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

import httpx
import msgspec
import orjson

from relay.core import signature
from relay.core.clock import Clock
from relay.core.config_values import Secret
from relay.core.delivery_rules import TIMEOUT_S, WAITS_S
from relay.core.errors import SinkError
from relay.outbound.http import client as http_client

CONNECTIONS = 64

USER_AGENT = "Service-Webhooks/1"


class SendOutcome(msgspec.Struct, frozen=True):
    """One attempt: the response's status, or None and a `reason`."""

    status: int | None
    seconds: float
    outcome: str = ""
    """The outcome in the relay's response, such as accepted or duplicate; may be empty."""
    reason: str = ""

    @property
    def acknowledged(self) -> bool:
        """Any 2xx is final (Delivery rule 2); a redirect is a failure like any other (rule 3)."""
        return self.status is not None and 200 <= self.status < 300


class Sent(msgspec.Struct, frozen=True):
    """The attempts for one body, at least one, in order."""

    attempts: tuple[SendOutcome, ...]

    @property
    def acknowledged(self) -> bool:
        return self.attempts[-1].acknowledged


Watch = Callable[[SendOutcome, float | None], None]
"""Called after each attempt with the seconds until the next one; None after the last."""


def _unwatched(_attempted: SendOutcome, _next_s: float | None) -> None:
    pass


class Sender:
    """Signs and posts bodies to one URL; any number of `send`s may run at once.

    `secret` may be replaced at any time: every attempt is signed anew, with its own time.
    """

    def __init__(
        self,
        url: str | httpx.URL,
        secret: Secret,
        *,
        clock: Clock,
        schedule: Sequence[float] = WAITS_S,
        timeout_s: float = TIMEOUT_S,
        time_scale: float = 1.0,
        header: str = "Service-Signature",
        connections: int = CONNECTIONS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Waits of `schedule` run from the end of an attempt; without any there is one attempt.

        `time_scale` multiplies the waits; `connections` limits the concurrent attempts.
        Raises ValueError for a URL that is not http or https.
        """
        self.secret = secret
        self._endpoint = http_client.HttpEndpoint.of(
            parse_url(url) if isinstance(url, str) else url
        )
        self._clock = clock
        self._waits = tuple(wait * time_scale for wait in schedule)
        self._timeout_s = timeout_s
        self._header = header
        self._sleep = sleep
        # Never reached: each attempt has a timeout of its own.
        self._client = http_client.HttpClient(timeout_s=2 * timeout_s, connections=connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.close()

    async def send(self, body: bytes, *, watch: Watch = _unwatched) -> Sent:
        """Post the body until it is acknowledged or the schedule ends."""
        attempts = []
        for next_s in (*self._waits, None):
            attempted = await self.attempt(body)
            attempts.append(attempted)
            if attempted.acknowledged or next_s is None:
                watch(attempted, None)
                break
            watch(attempted, next_s)
            await self._sleep(next_s)
        return Sent(tuple(attempts))

    async def attempt(self, body: bytes) -> SendOutcome:
        """Post the body once, signed now."""
        started_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.exchange(
                    self._endpoint, headers=self._headers(body), body=body
                )
        except TimeoutError:
            status, outcome, reason = None, "", f"no answer within {self._timeout_s:g} s"
        except SinkError as error:
            status, outcome, reason = None, "", error.reason
        else:
            status, outcome, reason = response.status, _outcome(response.excerpt), ""
        return SendOutcome(status, self._clock.monotonic() - started_s, outcome, reason)

    def _headers(self, body: bytes) -> list[tuple[str, str]]:
        secret, now_s = self.secret.reveal().encode(), self._clock.now_ms() // 1000
        return [
            ("User-Agent", USER_AGENT),
            ("Content-Type", "application/json"),
            (self._header, signature.header(secret, now_s=now_s, body=body)),
        ]


def parse_url(url: str) -> httpx.URL:
    """Parse an http or https URL with a host; raises ValueError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError("expected a URL such as http://127.0.0.1:8080/webhooks")
    return parsed


def _outcome(excerpt: str) -> str:
    try:
        document = orjson.loads(excerpt)
    except orjson.JSONDecodeError:
        return ""
    outcome = document.get("status") if isinstance(document, dict) else None
    return outcome if isinstance(outcome, str) else ""
