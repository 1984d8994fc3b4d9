"""The video service on several connections at once: what it has sent, and what was acknowledged."""

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Self

import httpx

from relay.core import sample_events, signature
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.event import KINDS, LEAD_CAPTURED
from relay.video_service.sender import Sender, SendOutcome
from tests.guarantees.destinations import Key
from tests.guarantees.process import SECRET, http_client

CREATED_AT = "2026-03-02T09:30:00.000Z"


def lead(event_id: str) -> bytes:
    return sample_events.body(
        LEAD_CAPTURED, event_id=event_id, created_at=CREATED_AT, random=Random(1)
    )


async def post(
    url: str, body: bytes, *, header: str | None = None, client: httpx.AsyncClient | None = None
) -> httpx.Response:
    """Post one request, signed now unless `header` says otherwise."""
    signed = signature.header(SECRET.encode(), now_s=int(time.time()), body=body)
    headers = {"service-signature": signed if header is None else header}
    if client is not None:
        return await client.post(url, content=body, headers=headers)
    async with http_client() as own:
        return await own.post(url, content=body, headers=headers)


@dataclass(frozen=True)
class Posted:
    kind: str
    body: bytes


class Traffic:
    """Sends samples of all kinds, each until it is acknowledged or the schedule is at its end."""

    def __init__(
        self, url: str, *, time_scale: float, random: Random, wait_s: float = 10.0
    ) -> None:
        self.posted: dict[Key, Posted] = {}
        self.acknowledged: set[Key] = set()
        self.statuses: list[int | None] = []
        """Of every attempt, in the order of their ends; None for one without an answer."""
        self.acknowledged_from_s: list[float] = []
        """When the attempts began that were answered 2xx, by the machine's clock."""
        self._random = random
        self._sender = Sender(
            url, Secret(SECRET), clock=SystemClock(), time_scale=time_scale, timeout_s=wait_s
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sender.close()

    @property
    def next_id(self) -> str:
        """The id that the next new event will have."""
        return f"evt_{len(self.posted):06}"

    async def send(self, kind: str | None = None) -> bool:
        """Send one new event as often as the schedule says; True if it was acknowledged."""
        key = self._new(kind)
        sent = await self._sender.send(self.posted[key].body, watch=self._watch)
        if sent.acknowledged:
            self.acknowledged.add(key)
        return sent.acknowledged

    async def attempt(self, kind: str | None = None) -> int | None:
        """Send one new event once; return the status of the answer."""
        key = self._new(kind)
        attempted = await self._sender.attempt(self.posted[key].body)
        self._watch(attempted, None)
        if attempted.acknowledged:
            self.acknowledged.add(key)
        return attempted.status

    async def flow(self, stop: asyncio.Event, *, pause_s: float) -> None:
        """One connection: one event after the other, with random pauses, until `stop` is set."""
        while not stop.is_set():
            await self.send()
            await asyncio.sleep(self._random.uniform(0, 2 * pause_s))

    def _new(self, kind: str | None) -> Key:
        event_id = self.next_id
        kind = kind or self._random.choice(KINDS)
        body = sample_events.body(
            kind, event_id=event_id, created_at=CREATED_AT, random=self._random
        )
        self.posted["main", event_id] = Posted(kind, body)
        return "main", event_id

    def _watch(self, attempted: SendOutcome, _next_s: float | None) -> None:
        self.statuses.append(attempted.status)
        if attempted.acknowledged:
            self.acknowledged_from_s.append(time.time() - attempted.seconds)
