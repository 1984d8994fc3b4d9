"""MQTT 5 over a blocking socket: what a test's own clients say, packet by packet."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from zmqtt import QoS
from zmqtt._internal.packets.codec import AnyPacket, encode
from zmqtt._internal.packets.connect import ConnAck, Connect
from zmqtt._internal.packets.properties import ConnectProperties
from zmqtt._internal.packets.publish import PubAck, Publish
from zmqtt._internal.packets.reader import PacketBuffer
from zmqtt._internal.packets.subscribe import SubAck, Subscribe, SubscriptionRequest

DEADLINE_S = 10.0
_PAUSE_S = 0.02


class Link:
    """A client that is let in as `admin`; without a lasting session it begins and ends with it."""

    def __init__(self, port: int, client_id: str, *, session_s: int = 0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._buffer = PacketBuffer(version="5.0")
        self._read = iter(self._packets())
        try:
            self._log_in(client_id, session_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, packet: AnyPacket) -> None:
        self._socket.sendall(encode(packet, version="5.0"))

    def receive(self) -> AnyPacket:
        """Raises OSError where the broker is gone."""
        return next(self._read)

    def wait_for_ever(self) -> None:
        self._socket.settimeout(None)

    def publish(self, topic: str, body: bytes = b"") -> None:
        """Return once the broker has it."""
        publish = Publish(
            topic=topic, payload=body, qos=QoS.AT_LEAST_ONCE, retain=False, dup=False, packet_id=1
        )
        self.send(publish)
        assert isinstance(self.receive(), PubAck)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _log_in(self, client_id: str, session_s: int) -> None:
        self.send(
            Connect(
                client_id=client_id,
                clean_session=session_s == 0,
                keepalive=0,
                username="admin",
                password=b"admin",
                properties=ConnectProperties(session_expiry_interval=session_s),
            )
        )
        answer = self.receive()
        assert isinstance(answer, ConnAck), answer
        assert answer.return_code == 0, answer

    def _packets(self) -> Iterator[AnyPacket]:
        while True:
            yield from list(self._buffer)
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError
            self._buffer.feed(data)


class Subscriber(Thread):
    """Hears all topics, in a session that outlives connections, and connects again by itself."""

    def __init__(self, port: int, take: Callable[[Publish], None]) -> None:
        super().__init__(daemon=True)
        self._listening = Event()
        self._port = port
        self._take = take
        self._over = Event()
        self._link: Link | None = None

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError), Link(self._port, "subscriber", session_s=3600) as self._link:
                self._listen(self._link)
            self._listening.clear()
            self._over.wait(_PAUSE_S)

    def wait_until_it_listens(self) -> None:
        assert self._listening.wait(DEADLINE_S), "the subscriber is not let in"

    def wait_until_it_is_cut_off(self) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while self._listening.is_set():
            assert time.monotonic() < end_s, "the subscriber still listens"
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Leave the session as it is, for another to take it up."""
        self._over.set()
        if self._link is not None:
            self._link.close()
        self.join(DEADLINE_S)

    def _listen(self, link: Link) -> None:
        request = SubscriptionRequest(topic_filter="#", qos=QoS.AT_LEAST_ONCE)
        link.send(Subscribe(packet_id=1, subscriptions=(request,)))
        link.wait_for_ever()
        while not self._over.is_set():
            match link.receive():
                case Publish(packet_id=int(packet_id)) as publish:
                    self._take(publish)
                    link.send(PubAck(packet_id=packet_id))
                case SubAck():
                    self._listening.set()
