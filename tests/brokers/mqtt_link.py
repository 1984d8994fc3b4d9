"""The tests' own MQTT clients, on threads."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

DEADLINE_S = 10.0


def client(client_id: str, *, manual_ack: bool = False) -> Client:
    admin = Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        protocol=MQTTProtocolVersion.MQTTv5,
        reconnect_on_failure=False,
        manual_ack=manual_ack,
    )
    admin.username_pw_set("admin", "admin")
    return admin


def _stop(client: Client) -> None:
    client.disconnect()
    # The thread forgets itself as it ends, also between the two looks that loop_stop takes at it.
    with suppress(AttributeError):
        client.loop_stop()
    # The two sockets that woke the thread are closed by nothing else but the garbage collector,
    # which may find them before the client.
    client.reinitialise()


class Link:
    """A client that is let in as `admin`, with a session that begins and ends with it."""

    def __init__(self, port: int, client_id: str) -> None:
        self._answered = Event()
        self._reason: ReasonCode | None = None
        self._client = client(client_id)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = lambda *_: self._answered.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert self._answered.wait(DEADLINE_S), "no CONNACK"
        if self._reason is None:
            self.close()
            raise ConnectionResetError
        assert self._reason == 0, self._reason

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, topic: str) -> None:
        """Return once the broker has it."""
        published = self._client.publish(topic, qos=1)
        published.wait_for_publish(DEADLINE_S)
        assert published.is_published()

    def close(self) -> None:
        _stop(self._client)

    def _on_connect(self, _c: Client, _u: Any, _f: Any, reason: ReasonCode, _p: Any) -> None:
        self._reason = reason
        self._answered.set()


class Subscriber:
    """Hears all topics, in a session that outlives its connection.

    With `heard`, the packet identifiers of the session so far, it acknowledges nothing: a write to
    a broker that was killed would make the client drop what it has not read yet.
    """

    def __init__(
        self, port: int, take: Callable[[MQTTMessage], None], *, heard: set[int] | None
    ) -> None:
        self._listening, self._cut_off = Event(), Event()
        self._take, self._heard = take, heard
        self._client = client("subscriber", manual_ack=heard is not None)
        self._client.on_connect = self._subscribe
        self._client.on_subscribe = lambda *_: self._listening.set()
        self._client.on_disconnect = lambda *_: self._cut_off.set()
        self._client.on_message = self._on_message
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self._client.loop_start()
        assert self._listening.wait(DEADLINE_S), "the subscriber is not let in"

    def wait_until_it_is_cut_off(self) -> None:
        assert self._cut_off.wait(DEADLINE_S), "the subscriber still listens"

    def stop(self) -> None:
        """Leave the session as it is, for another to take it up."""
        _stop(self._client)

    def _subscribe(self, *_: Any) -> None:
        self._client.subscribe("#", qos=1)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        if self._heard is not None:
            if message.dup and message.mid in self._heard:
                return
            self._heard.add(message.mid)
        self._take(message)
