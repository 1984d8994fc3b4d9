"""Real HTTP destinations on loopback: each has a mood, and keeps what came and what it answered."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

import orjson

Key = tuple[str, str]
"""An event's identity: source and id."""

MEMBER = "x-member"
"""Header in which a sink's config may name the relay."""


@dataclass(frozen=True)
class Mood:
    """What a destination does with a request: `status` after `delay_s`; None never answers."""

    status: int | None = 200
    delay_s: float = 0.0
    headers: tuple[str, ...] = ()
    body: bytes = b""


WELL = Mood()
FAILING = Mood(500)
GONE = Mood(404)
HANGING = Mood(None)


def busy(seconds: int) -> Mood:
    return Mood(429, headers=(f"retry-after: {seconds}",))


@dataclass(eq=False)
class Arrival:
    """One request that was read to its end; `status` is set once the answer is on its way."""

    key: Key
    kind: str
    body: bytes = field(repr=False)
    at_s: float
    member: str = ""
    """The relay that sent it, if its sink is configured to say so."""
    status: int | None = None
    ended: bool = False
    """Answered, or the relay has hung up."""


class Destination:
    """Listens on a port of its own; a change of `mood` counts for the requests that come then."""

    def __init__(self, name: str, mood: Mood = WELL) -> None:
        self.name = name
        self.mood = mood
        self.arrivals: list[Arrival] = []
        self.idled_s: list[float] = []
        """For each connection that the relay has closed, how long it had had nothing to do."""
        self._faults: list[AssertionError] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        if self._faults:
            raise self._faults[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.name}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def taken(self) -> Counter[Key]:
        """How often each event was answered 2xx."""
        return Counter(a.key for a in self.arrivals if a.status is not None and a.status < 300)

    def open(self) -> list[Arrival]:
        """What has arrived and waits for its answer."""
        return [arrival for arrival in self.arrivals if not arrival.ended]

    def mood_for(self, arrival: Arrival) -> Mood:
        """How to answer a request; asked once it has been read."""
        return self.mood

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        idle_from_s = time.monotonic()
        try:
            while True:
                await self._exchange(reader, writer)
                idle_from_s = time.monotonic()
        except (OSError, asyncio.IncompleteReadError):
            self.idled_s.append(time.monotonic() - idle_from_s)
        except AssertionError as fault:
            self._faults.append(fault)
        except asyncio.CancelledError:
            # Only our own end cancels; asyncio's callback would report it as a fault.
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrival = await _read(reader)
        self.arrivals.append(arrival)
        mood = self.mood_for(arrival)
        try:
            if mood.status is None:
                # Whatever comes instead of an answer's reader is the end of the connection.
                await reader.readexactly(1)
                return
            if mood.delay_s:
                await asyncio.sleep(mood.delay_s)
            arrival.status = mood.status
            writer.write(_answer(mood))
            await writer.drain()
        finally:
            arrival.ended = True


async def _read(reader: asyncio.StreamReader) -> Arrival:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers["content-length"]))
    document = orjson.loads(body)
    assert headers["webhook-id"] == document["id"].lower(), "the id must travel with the message"
    return Arrival(
        key=(headers["relay-source"], document["id"]),
        kind=document["event"],
        body=body,
        at_s=time.monotonic(),
        member=headers.get(MEMBER, ""),
    )


def _answer(mood: Mood) -> bytes:
    lines = (
        f"HTTP/1.1 {mood.status} Said",
        f"content-length: {len(mood.body)}",
        *mood.headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode() + mood.body
