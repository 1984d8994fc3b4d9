"""A broker with scripted replies, for what a mosquitto cannot be brought to say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from paho.mqtt.packettypes import PacketTypes

from tests.brokers.mqtt_packets import Packets, Publish, connack, puback, read_publish, unsuback
from tests.stub_server import until


def take(publish: Publish) -> bytes:
    return puback(publish.packet_id)


class MqttDouble:
    """Answers each PUBLISH as `reply` says; None leaves it without an answer."""

    def __init__(self) -> None:
        self.connack = connack()
        self.reply: Callable[[Publish], bytes | None] = take
        self.published: list[Publish] = []
        self.received: list[bytes] = []
        self.contacts = 0
        self.connections = 0
        """Those that are open."""
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["MqttDouble"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            for writer in self._writers:
                writer.transport.abort()
            await until(lambda: not self.connections, what="the end of all connections")

    def say(self, packet: bytes) -> None:
        """Send it to the client that came last."""
        self._writers[-1].write(packet)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.contacts += 1
        self.connections += 1
        packets = Packets()
        with suppress(OSError):
            while data := await reader.read(65536):
                self.received.append(data)
                for kind, content, size in packets.feed(data):
                    writer.write(self._answer(kind, content, size) or b"")
                await writer.drain()
        self.connections -= 1
        writer.close()

    def _answer(self, kind: int, content: bytes, size: int) -> bytes | None:
        match kind:
            case PacketTypes.CONNECT:
                return self.connack
            case PacketTypes.PUBLISH:
                self.published.append(read_publish(content, size))
                return self.reply(self.published[-1])
            case PacketTypes.UNSUBSCRIBE:
                return unsuback(int.from_bytes(content[:2], "big"))
        return None
