"""Mosquitto and paho-mqtt."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

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
        return {"asyncio": self._on_loop, "loop_start": self._on_thread}

    async def _on_loop(self, messages: Sequence[Message], in_flight: int) -> float:
        """Publish with the client driven by the event loop, as its documentation has it."""
        loop, client, connected = asyncio.get_running_loop(), self._client(), asyncio.Event()
        client.on_connect = lambda *_: connected.set()
        client.connect("127.0.0.1", self._server.port)
        connection = client.socket()
        assert isinstance(connection, socket.socket)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def read() -> None:
            client.loop_read()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

        def stop_writing(*_: object) -> None:
            loop.remove_writer(connection)

        client.on_socket_register_write = lambda *_: loop.add_writer(connection, client.loop_write)
        client.on_socket_unregister_write = stop_writing
        loop.add_reader(connection, read)
        await connected.wait()
        waiting: dict[int, asyncio.Future[None]] = {}
        client.on_publish = lambda _c, _u, mid, *_: waiting.pop(mid).set_result(None)

        async def send(message: Message) -> None:
            done = waiting[self._publish(client, message)] = loop.create_future()
            await done

        seconds = await timed(send, messages, workers=in_flight)
        loop.remove_reader(connection)
        client.disconnect()
        client.loop_write()
        return seconds

    async def _on_thread(self, messages: Sequence[Message], in_flight: int) -> float:
        """Publish with the client's own network thread."""
        loop, client, connected = asyncio.get_running_loop(), self._client(), asyncio.Event()

        def on_connect(*_: object) -> None:
            loop.call_soon_threadsafe(connected.set)

        client.on_connect = on_connect
        client.connect("127.0.0.1", self._server.port)
        client.loop_start()
        await connected.wait()
        waiting: dict[int, asyncio.Future[None]] = {}

        def resolve(mid: int) -> None:
            waiting.pop(mid).set_result(None)

        def on_publish(_client: Client, _userdata: object, mid: int, *_: object) -> None:
            loop.call_soon_threadsafe(resolve, mid)

        client.on_publish = on_publish

        async def send(message: Message) -> None:
            done = waiting[self._publish(client, message)] = loop.create_future()
            await done

        seconds = await timed(send, messages, workers=in_flight)
        client.disconnect()
        client.loop_stop()
        return seconds

    def _client(self) -> Client:
        client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set("relay", PASSWORD)
        client.max_inflight_messages = 65_535
        return client

    def _publish(self, client: Client, message: Message) -> int:
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = message.shown["content_type"]
        properties.UserProperty = list(message.shown["user_properties"].items())
        topic = message.shown["topic"]
        return client.publish(topic, message.body, qos=1, properties=properties).mid

    def held(self) -> int:
        self._server.subscribe()
        before, self._heard = self._heard, len(self._server.read())
        self._server.silence()
        return self._heard - before
