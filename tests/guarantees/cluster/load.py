"""The video service on many connections: the events of a video go one after the other."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Self

import orjson

from relay.core import sample_events
from relay.core.clock import SystemClock
from relay.core.config_values import Secret
from relay.core.event import LEAD_CAPTURED, VIDEO_WATCHED
from relay.video_service.sender import Sender, SendOutcome
from tests.guarantees.destinations import Key
from tests.guarantees.process import SECRET
from tests.guarantees.traffic import CREATED_AT

TIME_SCALE = 0.05
"""The sender's waits are then 1, 2, 4, 8 and 16 s: a restart of the database falls into them."""

KINDS = (LEAD_CAPTURED, VIDEO_WATCHED)


Pause = Callable[[], float]
"""Returns the seconds until a connection sends its next event."""


def steady(rate: float) -> Pause:
    """Return pauses with which all connections together send at this rate.

    Each event has a time of its own to start; where all connections wait, the next ones are late.
    """
    began_s, numbers = time.monotonic(), count(1)
    return lambda: max(0.0, began_s + next(numbers) / rate - time.monotonic())


@dataclass(frozen=True)
class Posted:
    kind: str
    video: str
    body: bytes


class Load:
    """Sends until each event is acknowledged, or the schedule is at its end."""

    def __init__(self, url: str, *, random: Random) -> None:
        self.posted: dict[Key, Posted] = {}
        self.acknowledged: set[Key] = set()
        self.answers: Counter[str] = Counter()
        """Of all attempts: statuses, and reasons for there being none."""
        self._random = random
        self._videos = count()
        self._sender = Sender(url, Secret(SECRET), clock=SystemClock(), time_scale=TIME_SCALE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sender.close()

    def at_random(self, mean_s: float) -> Pause:
        """Return pauses of this length on average."""
        return lambda: self._random.uniform(0, 2 * mean_s)

    async def flow(self, stop: asyncio.Event, pause: Pause) -> None:
        """One connection, one event after the other, until `stop` is set.

        After an event that was given up comes another video: whether, and so when, that one was
        accepted is not known.
        """
        while not stop.is_set():
            video = f"vid_{next(self._videos):05}"
            for number in range(1_000_000):
                acknowledged = await self.send(("main", f"{video}.{number:06}"), video)
                if stop.is_set() or not acknowledged:
                    break
                await asyncio.sleep(pause())

    async def send(self, key: Key, video: str) -> bool:
        """Send a new event; return whether it was acknowledged."""
        posted = self.posted[key] = self._make(video, key[1])
        sent = await self._sender.send(posted.body, watch=self._watch)
        if sent.acknowledged:
            self.acknowledged.add(key)
        return sent.acknowledged

    def _make(self, video: str, event_id: str) -> Posted:
        kind = self._random.choice(KINDS)
        body = sample_events.body(
            kind, event_id=event_id, created_at=CREATED_AT, random=self._random
        )
        document = orjson.loads(body)
        document["data"]["video"]["id"] = video
        return Posted(kind, video, orjson.dumps(document))

    def _watch(self, attempted: SendOutcome, _next_s: float | None) -> None:
        self.answers[attempted.reason or str(attempted.status)] += 1
