"""One MQTT 5 connection, which keeps within the broker's limits and ends at once.

brokers.md, section 10. The library's client hides the reason code of a PUBACK that is no refusal,
and neither it nor the engine below, which is used here, keeps to the limits of a CONNACK.
The engine is internal to the library, which has an upper bound for it in pyproject.toml.
"""

import asyncio
import logging
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

from zmqtt import (
    ConnAckProperties,
    MQTTDisconnectedError,
    MQTTError,
    MQTTPublishError,
    MQTTTimeoutError,
    PublishProperties,
    QoS,
)
from zmqtt._internal.packets.connect import Connect
from zmqtt._internal.packets.publish import PubAck, Publish
from zmqtt._internal.protocol import MQTTProtocol
from zmqtt._internal.state import SessionState

from relay import tls
from relay.errors import Refused, SinkError, Temporary
from relay.mqtt_failure import NO_QOS, TOO_LARGE, connect_failure, meaning

_LOST = "the connection was lost"
_DISCONNECT = re.compile(r"reason code 0x([0-9A-F]{2})")

# Where CONNACK names no limit: MQTT 5.0, sections 3.2.2.3.3 and 2.1.4.
_RECEIVE_MAXIMUM = 65_535
_PACKET_BYTES = 268_435_460

_KEEP_ALIVE_S = 30
_READ_BYTES = 65_536

# A connection that is lost is an error of the send, which is counted and shown once.
logging.getLogger("zmqtt").setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker is and what it is told of us; a context means TLS."""

    host: str
    port: int
    context: ssl.SSLContext | None
    client_id: str
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)


class Transport:
    """What the library reads from and writes to, and can be ended whatever the peer does.

    Packets that are written in one turn of the loop leave together: a system call each would cost
    as much as all the rest of them. What waits is bounded by the packets that may be on their way.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unwritten: list[bytes] = []
        self._call_soon = asyncio.get_running_loop().call_soon
        self.is_connected = True

    async def read(self, n: int) -> bytes:
        try:
            data = await self._reader.read(max(n, _READ_BYTES))
        except OSError as error:
            self.is_connected = False
            raise MQTTDisconnectedError from error
        if not data:
            self.is_connected = False
            raise MQTTDisconnectedError
        return data

    async def write(self, data: bytes) -> None:
        """Raises nothing: the engine would forget a packet whose end it notices in reading."""
        if not self.is_connected:
            return
        if not self._unwritten:
            self._call_soon(self._flush)
        self._unwritten.append(data)

    def _flush(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        # Once the connection is lost, which only reading tells, uvloop would raise.
        if unwritten and not self._writer.is_closing():
            self._writer.write(b"".join(unwritten))

    async def close(self) -> None:
        self._flush()
        self.is_connected = False
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Drop what is not yet written, and let the socket go."""
        self.is_connected = False
        self._unwritten = []
        self._writer.transport.abort()


class Connection:
    """Made by `connect`; of no more use once it is not `usable`."""

    def __init__(
        self,
        transport: Transport,
        engine: MQTTProtocol,
        *,
        limits: ConnAckProperties,
        at_once: int,
    ) -> None:
        self._transport = transport
        self._engine = engine
        self._largest = limits.maximum_packet_size or _PACKET_BYTES
        self._room = asyncio.Semaphore(min(at_once, limits.receive_maximum or _RECEIVE_MAXIMUM))
        self._acks = 0
        self._sizes: list[int] = []
        """Of the packets on their way."""
        self._at_end: list[int] = []
        self._running = asyncio.create_task(engine.run())
        self._running.add_done_callback(self._ended)

    @property
    def usable(self) -> bool:
        return self._transport.is_connected and not self._running.done()

    async def publish(self, topic: str, body: bytes, properties: PublishProperties) -> int:
        """Return the reason code with which the broker took it; raises SinkError."""
        size = packet_size(topic, body, properties)
        if size > self._largest:
            raise Refused(f"{size} bytes are more than the broker's maximum packet size")
        packet = Publish(
            topic=topic,
            payload=body,
            qos=QoS.AT_LEAST_ONCE,
            retain=False,
            dup=False,
            properties=properties,
        )
        acks = self._acks
        try:
            await self._room.acquire()
            # To the broker it is on its way until the PUBACK, also where nobody waits for that.
            found = await asyncio.shield(asyncio.create_task(self._fly(packet, size)))
        except asyncio.CancelledError:
            if self._acks == acks:
                # Nothing came all the while: a frozen broker would take the rest later, unasked.
                self.abort()
            raise
        if isinstance(found, SinkError):
            raise found
        return found

    async def ping(self, *, within_s: float) -> None:
        """Raises SinkError."""
        try:
            await self._engine.ping(timeout=within_s)
        except MQTTTimeoutError:
            failure = Temporary("the broker did not answer in time")
        except MQTTError:
            failure = Temporary(_LOST)
        else:
            return
        self.abort()
        raise failure

    def abort(self) -> None:
        """Cut the connection; the engine notices and gives up what waits."""
        self._transport.abort()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait({self._running})
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._engine.disconnect()
        self.abort()

    async def _fly(self, packet: Publish, size: int) -> int | SinkError:
        self._sizes.append(size)
        try:
            if not self.usable:
                return Temporary(_LOST)
            ack = await self._engine.publish(packet)
        except MQTTPublishError as error:
            self._acks += 1
            return meaning(error.reason_code)
        except MQTTError:
            return await self._fate(size)
        finally:
            self._sizes.remove(size)
            self._room.release()
        self._acks += 1
        return ack.reason_code if isinstance(ack, PubAck) else 0

    async def _fate(self, size: int) -> SinkError:
        """What the end of the connection means to a packet that was on its way."""
        self.abort()
        await asyncio.wait({self._running})
        cause = None if self._running.cancelled() else self._running.exception()
        said = _DISCONNECT.search(str(cause))
        if said is None:
            return Temporary(_LOST)
        code = int(said[1], 16)
        error = meaning(code)
        if isinstance(error, Refused) and not self._is_blamed(code, size):
            return Temporary("the broker ended the connection because of another event")
        return error

    def _is_blamed(self, code: int, size: int) -> bool:
        """A DISCONNECT names no packet, but the largest is too large if any is."""
        return len(self._at_end) <= 1 or (code == TOO_LARGE and size >= max(self._at_end))

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._at_end = list(self._sizes)
        if not running.cancelled():
            running.exception()  # what it means is told by those who wait
            self._transport.abort()


async def connect(broker: Broker, *, at_once: int) -> Connection:
    """Open the socket and have the login accepted; raises SinkError.

    `at_once` packets may be on their way, or fewer, where the broker says so.
    """
    transport: Transport | None = None
    try:
        streams = await asyncio.open_connection(broker.host, broker.port, ssl=broker.context)
        transport = Transport(*streams)
        engine = MQTTProtocol(transport, SessionState(), keepalive=_KEEP_ALIVE_S, version="5.0")
        limits = (await engine.connect(_login(broker))).properties or ConnAckProperties()
    except asyncio.CancelledError:
        if transport is not None:
            transport.abort()
        raise
    except Exception as error:  # noqa: BLE001  an answer that is no MQTT makes it raise what comes
        failure = connect_failure(error)
        cut = isinstance(error, MQTTDisconnectedError)
    else:
        if limits.maximum_qos != 0:
            return Connection(transport, engine, limits=limits, at_once=at_once)
        failure, cut = meaning(NO_QOS), False
    if transport is not None:
        transport.abort()
    if cut and broker.context is not None:
        failure = await _verdict(broker) or failure
    raise failure


def _login(broker: Broker) -> Connect:
    """Without a session: what was not confirmed is in the relay's store, and goes out anew."""
    return Connect(
        client_id=broker.client_id,
        clean_session=True,
        keepalive=_KEEP_ALIVE_S,
        username=broker.username,
        password=None if broker.password is None else broker.password.encode(),
    )


async def _verdict(broker: Broker) -> SinkError | None:
    """Connect once more, to hear what the broker says of our certificate."""
    try:
        reader, writer = await asyncio.open_connection(broker.host, broker.port, ssl=broker.context)
    except OSError as error:
        return tls.failure(error, peer="broker")
    try:
        return await tls.verdict(reader, peer="broker")
    finally:
        writer.transport.abort()


def packet_size(topic: str, body: bytes, properties: PublishProperties) -> int:
    """Count the bytes of a PUBLISH with QoS 1, as a broker does (MQTT 5.0, section 3.3)."""
    texts = [text for pair in properties.user_properties for text in pair]
    held = sum(2 + len(text.encode()) for text in texts) + len(properties.user_properties)
    if properties.content_type is not None:
        held += 3 + len(properties.content_type.encode())
    rest = 2 + len(topic.encode()) + 2 + _length_bytes(held) + held + len(body)
    return 1 + _length_bytes(rest) + rest


def _length_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))
