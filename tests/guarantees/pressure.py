"""New events at a fixed rate, whatever the answers: what each got, and how long that took."""

import asyncio
import time
from dataclasses import dataclass, field

import orjson

from relay.core import signature
from tests.guarantees.destinations import Key
from tests.guarantees.process import SECRET

CONNECTIONS = 25


@dataclass(frozen=True, slots=True)
class Asked:
    """One request; `seconds` counts from when it was due, so that a stall hides nothing."""

    key: Key
    due_s: float
    seconds: float
    status: int


@dataclass
class Pressure:
    """Presses on a relay's public port while `run` is awaited."""

    port: int
    rate: float
    asked: list[Asked] = field(default_factory=list)
    _next: int = 0

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            begin_s = time.monotonic()
            for number in range(CONNECTIONS):
                tasks.create_task(self._press(begin_s + number / self.rate, stop))

    async def _press(self, due_s: float, stop: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while not stop.is_set():
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                await self._ask(reader, writer, due_s=due_s)
                due_s += CONNECTIONS / self.rate
        finally:
            writer.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, due_s: float
    ) -> None:
        event_id = f"evt_{self._next:06}"
        self._next += 1
        writer.write(_request(event_id))
        head = await reader.readuntil(b"\r\n\r\n")
        seconds = time.monotonic() - due_s
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.asked.append(Asked(("main", event_id), due_s, seconds, int(head.split(b" ")[1])))


def _request(event_id: str) -> bytes:
    body = orjson.dumps({"id": event_id, "event": "video.ready", "data": {"title": "A title"}})
    signed = signature.header(SECRET.encode(), now_s=int(time.time()), body=body)
    head = (
        "POST /webhooks HTTP/1.1\r\nhost: relay\r\n"
        f"content-length: {len(body)}\r\nservice-signature: {signed}\r\n\r\n"
    )
    return head.encode() + body
