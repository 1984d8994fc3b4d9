"""A double of Pub/Sub's REST interface and httpx."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.queue import Broker, Loop, Message, batches, timed
from tests.brokers.pubsub_double import PROJECT, TOPIC, PubsubServer


class Pubsub(Broker):
    """The double of the tests, in a process of its own; its record is a file."""

    name = "pubsub"

    def __init__(self) -> None:
        self._heard = 0

    def start(self, folder: Path) -> None:
        self._server = PubsubServer(folder)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        """`held` leaves out what it has counted before."""

    def table(self) -> dict[str, Any]:
        return {"project": PROJECT, "topic": TOPIC, "emulator_host": self._server.address}

    def loops(self) -> dict[str, Loop]:
        return {"publish": self._publish}

    async def _publish(self, messages: Sequence[Message], in_flight: int) -> float:
        """All have the same ordering key, so that one request after the other keeps the order."""
        path = f"/v1/{messages[0].shown['topic']}:publish"
        address = f"http://{self._server.address}"
        async with httpx.AsyncClient(base_url=address, trust_env=False) as client:

            async def send(batch: Sequence[Message]) -> None:
                body = orjson.dumps({"messages": [_entry(message) for message in batch]})
                answer = await client.post(path, content=body)
                assert len(answer.json()["messageIds"]) == len(batch)

            return await timed(send, batches(messages, in_flight), workers=1)

    def held(self) -> int:
        before, self._heard = self._heard, len(self._server.read())
        return self._heard - before


def _entry(message: Message) -> dict[str, Any]:
    beside = {name: value for name, value in message.shown.items() if name not in ("topic", "body")}
    return {"data": b64encode(message.body).decode(), **beside}
