"""A broker that says what it is told to say, for what a mosquitto cannot be brought to say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from zmqtt import ConnAckProperties
from zmqtt._internal.packets.codec import AnyPacket, encode
from zmqtt._internal.packets.connect import ConnAck, Connect
from zmqtt._internal.packets.publish import PubAck, Publish
from zmqtt._internal.packets.reader import PacketBuffer


def take(publish: Publish) -> AnyPacket | None:
    return PubAck(packet_id=publish.packet_id or 0)


class MqttDouble:
    """Answers each PUBLISH as `reply` says; None leaves it without an answer."""

    def __init__(self) -> None:
        self.connack = ConnAck(session_present=False, return_code=0)
        self.greeting: bytes | None = None
        """In place of the CONNACK."""
        self.reply: Callable[[Publish], AnyPacket | None] = take
        self.published: list[Publish] = []
        self.contacts = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["MqttDouble"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self
            for writer in self._writers:
                writer.transport.abort()

    def limit(self, **limits: int) -> None:
        """Name limits in the CONNACK: `receive_maximum`, `maximum_packet_size` and so on."""
        properties = ConnAckProperties(**limits)  # type: ignore[arg-type]
        self.connack = ConnAck(session_present=False, return_code=0, properties=properties)

    def say(self, packet: AnyPacket) -> None:
        """Send it to the client that came last."""
        self._writers[-1].write(encode(packet, version="5.0"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.contacts += 1
        buffer = PacketBuffer(version="5.0")
        with suppress(OSError):
            while data := await reader.read(65536):
                buffer.feed(data)
                for packet in buffer:
                    self._answer(packet, writer)
                await writer.drain()
        writer.close()

    def _answer(self, packet: AnyPacket, writer: asyncio.StreamWriter) -> None:
        answer: AnyPacket | None = None
        match packet:
            case Connect() if self.greeting is not None:
                writer.write(self.greeting)
            case Connect():
                answer = self.connack
            case Publish():
                self.published.append(packet)
                answer = self.reply(packet)
        if answer is not None:
            writer.write(encode(answer, version="5.0"))
