"""One MQTT 5 connection, which knows the broker's limits and ends at once.

brokers.md, section 10. The library's client hides the reason code of a PUBACK that is no refusal,
and neither it nor the engine below, which is used here, keeps to the limits of a CONNACK:
`relay.sinks.mqtt.publisher` does.
The engine is internal to the library, which has an upper bound for it in pyproject.toml.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from zmqtt import (
    ConnAckProperties,
    MQTTDisconnectedError,
    MQTTError,
    MQTTTimeoutError,
)
from zmqtt._internal.packets.connect import Connect
from zmqtt._internal.protocol import MQTTProtocol
from zmqtt._internal.state import SessionState

from relay.core.errors import SinkError, Temporary
from relay.outbound import tls
from relay.sinks.mqtt.errors import NO_QOS, connect_failure, meaning

LOST = "the connection was lost"
_DISCONNECT = re.compile(r"reason code 0x([0-9A-F]{2})")

# Where CONNACK names no limit: MQTT 5.0, sections 3.2.2.3.3 and 2.1.4.
_RECEIVE_MAXIMUM = 65_535
_PACKET_BYTES = 268_435_460

_KEEP_ALIVE_S = 30
_READ_BYTES = 65_536

_QUICKACK = (
    (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1) if hasattr(socket, "TCP_QUICKACK") else None
)
"""Holds until the kernel thinks otherwise, so that it is said after each read."""

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
        self._acknowledge()
        return data

    def _acknowledge(self) -> None:
        """Have the kernel say at once that data has come, where it can (Linux).

        Nothing follows the first PUBACK of a batch from here. A mosquitto that is not told
        otherwise holds the others back until the kernel speaks for itself, 40 ms later.
        """
        if _QUICKACK is not None and not self._writer.is_closing():
            with suppress(OSError):
                self._writer.get_extra_info("socket").setsockopt(*_QUICKACK)

    async def write(self, data: bytes) -> None:
        self.put(data)

    def put(self, data: bytes) -> None:
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
        state: SessionState,
        *,
        limits: ConnAckProperties,
    ) -> None:
        self._transport = transport
        self._engine = engine
        self.state = state
        """Where the engine looks for what is on its way."""
        self.largest = limits.maximum_packet_size or _PACKET_BYTES
        """Of the packets that the broker takes, in bytes."""
        self.receive_maximum = limits.receive_maximum or _RECEIVE_MAXIMUM
        """So many packets may be without a PUBACK."""
        self.put = transport.put
        self._running = asyncio.create_task(engine.run())
        self._running.add_done_callback(self._ended)

    @property
    def usable(self) -> bool:
        return self._transport.is_connected and not self._running.done()

    def when_ended(self, tell: Callable[[int | None], None]) -> None:
        """Have it told once, with the reason code of the broker's DISCONNECT if there was one."""
        self._running.add_done_callback(lambda running: tell(_farewell(running)))

    async def ping(self, *, within_s: float) -> None:
        """Raises SinkError."""
        try:
            await self._engine.ping(timeout=within_s)
        except MQTTTimeoutError:
            failure = Temporary("the broker did not answer in time")
        except MQTTError:
            failure = Temporary(LOST)
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

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled():
            running.exception()  # what it means is told by those who wait
            self._transport.abort()


def _farewell(running: asyncio.Task[None]) -> int | None:
    cause = None if running.cancelled() else running.exception()
    said = _DISCONNECT.search(str(cause))
    return None if said is None else int(said[1], 16)


async def connect(broker: Broker) -> Connection:
    """Open the socket and have the login accepted; raises SinkError."""
    transport: Transport | None = None
    state = SessionState()
    try:
        streams = await asyncio.open_connection(broker.host, broker.port, ssl=broker.context)
        transport = Transport(*streams)
        engine = MQTTProtocol(transport, state, keepalive=_KEEP_ALIVE_S, version="5.0")
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
            return Connection(transport, engine, state, limits=limits)
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
