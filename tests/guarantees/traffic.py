"""The video service on several connections at once: what it has sent, and what was acknowledged."""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Self

from relay import samples
from relay.clock import SystemClock
from relay.event import KINDS
from relay.sender import Attempted, Sender
from relay.settings import Secret
from tests.guarantees.process import SECRET

if TYPE_CHECKING:
    from tests.guarantees.far_ends import Key

CREATED_AT = "2026-03-02T09:30:00.000Z"


@dataclass(frozen=True)
class Posted:
    kind: str
    body: bytes


class Traffic:
    """Sends samples of all kinds, each until it is acknowledged or the schedule is at its end."""

    def __init__(self, url: str, *, time_scale: float, dice: Random, wait_s: float = 10.0) -> None:
        self.posted: dict[Key, Posted] = {}
        self.acknowledged: set[Key] = set()
        self.statuses: list[int | None] = []
        """Of every attempt, in the order of their ends; None for one without an answer."""
        self._dice = dice
        self._sender = Sender(
            url, Secret(SECRET), clock=SystemClock(), time_scale=time_scale, wait_s=wait_s
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sender.close()

    async def send(self, kind: str | None = None) -> bool:
        """Send one new event; True if it was acknowledged."""
        event_id = f"evt_{len(self.posted):06}"
        kind = kind or self._dice.choice(KINDS)
        body = samples.body(kind, event_id=event_id, created_at=CREATED_AT, dice=self._dice)
        self.posted["main", event_id] = Posted(kind, body)
        sent = await self._sender.send(body, watch=self._watch)
        if sent.acknowledged:
            self.acknowledged.add(("main", event_id))
        return sent.acknowledged

    async def flow(self, stop: asyncio.Event, *, pause_s: float) -> None:
        """One connection: one event after the other, with random pauses, until `stop` is set."""
        while not stop.is_set():
            await self.send()
            await asyncio.sleep(self._dice.uniform(0, 2 * pause_s))

    def _watch(self, attempted: Attempted, _next_s: float | None) -> None:
        self.statuses.append(attempted.status)
