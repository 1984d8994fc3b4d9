"""Mosquitto and zmqtt."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zmqtt import PublishProperties, QoS, create_client

from benchmarks.queue import Broker, Loop, Message, timed
from tests.brokers.mosquitto import PASSWORD, Mosquitto


class Mqtt(Broker):
    """Mosquitto, which keeps all of it for a subscriber that is away meanwhile."""

    name = "mqtt"

    def __init__(self) -> None:
        self._heard = 0

    def start(self, folder: Path) -> None:
        self._server = Mosquitto(folder)
        # Else it would write all that it holds with every message.
        self._server.configure(more="autosave_on_changes false\nautosave_interval 1800")
        self._server.start()
        self._server.silence()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        """`held` has emptied it."""

    def table(self) -> dict[str, Any]:
        return {"url": self._server.url, "username": "relay", "password": PASSWORD}

    def loops(self) -> dict[str, Loop]:
        return {"publish": self._publish}

    async def _publish(self, messages: Sequence[Message], in_flight: int) -> float:
        client = create_client(
            "127.0.0.1",
            self._server.port,
            username="relay",
            password=PASSWORD,
            version="5.0",
        )

        async def send(message: Message) -> None:
            properties = PublishProperties(
                content_type=message.shown["content_type"],
                user_properties=tuple(message.shown["user_properties"].items()),
            )
            await client.publish(
                message.shown["topic"], message.body, qos=QoS.AT_LEAST_ONCE, properties=properties
            )

        async with client:
            return await timed(send, messages, workers=in_flight)

    def held(self) -> int:
        self._server.subscribe()
        before, self._heard = self._heard, len(self._server.read())
        self._server.silence()
        return self._heard - before
