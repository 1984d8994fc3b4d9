"""One MQTT 5 connection: paho-mqtt's client on the event loop.

brokers.md, section 10. The client's connecting blocks, so that it runs on a thread; from the login
on, the event loop drives the client, where the meaning of a batch's end is decided without locks.
It ignores the limits of a CONNACK, which `relay.sinks.mqtt.publisher` keeps. Its public callbacks
report the reason code of each PUBACK, which aiomqtt drops.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any, cast

import msgspec
from paho.mqtt.client import Client, DisconnectFlags
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from relay.core.config_values import Secret
from relay.core.errors import SinkError, Temporary
from relay.outbound import tls
from relay.sinks.mqtt.errors import NO_QOS, PROTOCOL_ERROR, TOO_LARGE, classify, login_refused

LOST = "the connection was lost"
_NOT_LET_IN = "the broker ended the connection before it let us in"

_KEEP_ALIVE_S = 30
_TICK_S = 1.0
"""Interval of the client's keep-alive checks, as in its documentation."""

# Defaults of a CONNACK's limits: MQTT 5.0, sections 3.2.2.3.3 and 2.1.4.
_RECEIVE_MAXIMUM = 65_535
_PACKET_BYTES = 268_435_460

_CONNACK = 0
"""Key of the CONNACK among the replies; no packet identifier is 0."""

# Linux only.
_CORK = getattr(socket, "TCP_CORK", None)
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)

# mosquitto refuses a message over its `message_size_limit` by a PUBACK with this code, which MQTT 5
# has for DISCONNECT and CONNACK only; the client would take the packet for malformed.
ReasonCode.names = {
    **ReasonCode.names,
    TOO_LARGE: {
        name: [*packets, PacketTypes.PUBACK]
        for name, packets in ReasonCode.names[TOO_LARGE].items()
    },
}


class _TlsSocket(ssl.SSLSocket):
    """Closes itself if the handshake fails, which the client leaves to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002  as in `ssl`
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


Reply = tuple[int, Properties | None]
"""Reason code, and of a CONNACK the limits."""


class Broker(msgspec.Struct, frozen=True):
    """Address and login of a broker; a context means TLS."""

    host: str
    port: int
    context: ssl.SSLContext | None
    client_id: str
    timeout_s: float
    username: Secret | None
    password: Secret | None


class MqttConnection:
    """Publishes with QoS 1 and reports each PUBACK; usable until `on_end` is called."""

    on_puback: Callable[[int, int], None]
    """Called with the packet identifier and the reason code."""
    on_end: Callable[[int | None], None]
    """Called once, with the reason code of the broker's DISCONNECT if there was one."""

    def __init__(self, client: Client) -> None:
        self.usable = True
        self.max_packet_bytes = _PACKET_BYTES
        self.receive_maximum = _RECEIVE_MAXIMUM
        """Maximum number of messages without a PUBACK."""
        self.on_end = lambda _: None
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._socket = cast("socket.socket", client.socket())
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        """By packet identifier."""
        self._drive()

    async def login(self) -> None:
        """Wait for the CONNACK; raises SinkError."""
        code, limits = await self._reply(_CONNACK)
        if code:
            raise login_refused(code)
        if getattr(limits, "MaximumQoS", 1) == 0:
            raise classify(NO_QOS)
        self.max_packet_bytes = getattr(limits, "MaximumPacketSize", _PACKET_BYTES)
        self.receive_maximum = getattr(limits, "ReceiveMaximum", _RECEIVE_MAXIMUM)

    def publish(self, topic: str, body: bytes, properties: Properties) -> int:
        """Queue a message and return its packet identifier."""
        info = self._client.publish(topic, body, qos=1, properties=properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise Temporary("no packet identifier is free")
        return info.mid

    async def ping(self) -> None:
        """Have the broker answer a request without effect: the client reports no PINGRESP."""
        _, packet_id = self._client.unsubscribe("relay/ping")
        if packet_id is None:
            raise Temporary(LOST)
        await self._reply(packet_id)

    def abort(self) -> None:
        """Cut the connection and discard queued messages."""
        if self.usable:
            self._client.connect_async("localhost")  # documented to end a connection immediately
            self._end(None)

    def close(self) -> None:
        """Send a DISCONNECT if the socket takes it at once."""
        self._client.disconnect()
        self._client.loop_write()
        self.abort()

    def _drive(self) -> None:
        """Have the event loop run the client."""
        client, loop, descriptor = self._client, self._loop, self._socket.fileno()
        client.on_connect = lambda _c, _u, _f, reason, limits: self._resolve(
            _CONNACK, reason.value, limits
        )
        client.on_unsubscribe = lambda _c, _u, packet_id, *_: self._resolve(packet_id)
        client.on_publish = lambda _c, _u, packet_id, reason, _p: self.on_puback(
            packet_id, reason.value
        )
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = lambda *_: loop.add_writer(descriptor, self._write)
        client.on_socket_unregister_write = self._on_socket_unregister_write
        self._set_option(socket.TCP_NODELAY, 1)
        loop.add_reader(descriptor, self._read)
        loop.add_writer(descriptor, self._write)  # the CONNECT is queued
        self._timer = loop.call_later(_TICK_S, self._tick)

    def _read(self) -> None:
        self._client.loop_read()
        # Bytes that TLS has already decrypted do not wake the event loop.
        while self.usable and isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._client.loop_read()
        # A mosquitto holds back all PUBACKs of a batch but the first until TCP acknowledges that
        # one, which the kernel delays by 40 ms; the option lasts for some packets only.
        self._set_option(_QUICKACK, 1)

    def _write(self) -> None:
        # A write that fails would discard PUBACKs that came before the broker closed.
        self._read()
        # The client writes each message separately. Together they cost the broker less, and a
        # broker that closes because of a message does so after the last write.
        self._set_option(_CORK, 1)
        self._client.loop_write()
        self._set_option(_CORK, 0)

    def _set_option(self, option: int | None, value: int) -> None:
        if self.usable and option is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._tick)
        self._client.loop_misc()

    async def _reply(self, packet_id: int) -> Reply:
        reply: asyncio.Future[Reply] = self._loop.create_future()
        self._replies[packet_id] = reply
        return await reply

    def _resolve(self, packet_id: int, code: int = 0, limits: Properties | None = None) -> None:
        reply = self._replies.pop(packet_id, None)
        if reply is not None and not reply.done():
            reply.set_result((code, limits))

    def _on_socket_unregister_write(self, *_: object) -> None:
        self._loop.remove_writer(self._socket.fileno())

    def _on_socket_close(self, *_: object) -> None:
        self.usable = False
        self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())

    def _on_disconnect(
        self, _c: Client, _u: Any, flags: DisconnectFlags, reason: ReasonCode, _p: Properties | None
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._end(reason.value or None)
        else:
            self._end(None, is_nonsense=reason.value == PROTOCOL_ERROR)

    def _end(self, code: int | None, *, is_nonsense: bool = False) -> None:
        text = LOST
        if _CONNACK in self._replies:
            text = "what answers there is not MQTT 5" if is_nonsense else _NOT_LET_IN
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(Temporary(text))
        self._replies.clear()
        self.on_end(code)


async def connect(broker: Broker) -> MqttConnection:
    """Open a connection and log in; raises SinkError."""
    try:
        connection = MqttConnection(await _open(broker))
    except Exception as error:  # noqa: BLE001  of whatever kind, there is no connection
        failure = tls.connect_failure(error, peer="broker") or Temporary("could not connect")
        raise failure from None
    try:
        await connection.login()
    except BaseException as error:
        connection.abort()
        if isinstance(error, SinkError) and error.status is None and broker.context is not None:
            verdict = await tls.ask_verdict(broker.host, broker.port, broker.context, peer="broker")
            raise (verdict or error) from None
        raise
    return connection


async def _open(broker: Broker) -> Client:
    """Connect on a daemon thread: a cancelled attempt delays neither the next nor the exit."""
    opened: Future[Client] = Future()
    opened.set_running_or_notify_cancel()
    Thread(target=_connect, args=(broker, opened), daemon=True).start()
    return await asyncio.wrap_future(opened)


def _connect(broker: Broker, opened: Future[Client]) -> None:
    client = Client(
        CallbackAPIVersion.VERSION2, broker.client_id, protocol=MQTTProtocolVersion.MQTTv5
    )
    username, password = (
        None if secret is None else secret.reveal() for secret in (broker.username, broker.password)
    )
    # Without a username the client leaves the password out.
    client.username_pw_set(username or (None if password is None else ""), password)
    if broker.context is not None:
        broker.context.sslsocket_class = _TlsSocket
        client.tls_set_context(broker.context)
    client.max_inflight_messages = _RECEIVE_MAXIMUM
    client.connect_timeout = broker.timeout_s
    # The CONNECT waits for the event loop: after a cancelled attempt, nothing logs in.
    client.on_socket_register_write = lambda *_: None
    try:
        client.connect(broker.host, broker.port, _KEEP_ALIVE_S)
    except Exception as error:  # noqa: BLE001  raised where it is awaited
        opened.set_exception(error)
    else:
        opened.set_result(client)
