"""MQTT 5 packets as a broker's end reads and writes them, for the double."""

from collections.abc import Iterator
from dataclasses import dataclass

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties, VariableByteIntegers


@dataclass(frozen=True)
class Publish:
    topic: str
    payload: bytes
    packet_id: int
    user_properties: dict[str, str]
    size: int
    """Of the packet, in bytes."""


def connack(code: int = 0, **limits: int) -> bytes:
    """Name limits as the client does: `ReceiveMaximum`, `MaximumPacketSize` and so on."""
    properties = Properties(PacketTypes.CONNACK)
    for name, value in limits.items():
        setattr(properties, name, value)
    return _packet(PacketTypes.CONNACK, bytes([0, code]) + properties.pack())


def puback(packet_id: int, code: int = 0) -> bytes:
    return _packet(PacketTypes.PUBACK, packet_id.to_bytes(2, "big") + bytes([code]))


def unsuback(packet_id: int) -> bytes:
    return _packet(PacketTypes.UNSUBACK, packet_id.to_bytes(2, "big") + b"\x00\x11")


def disconnect(code: int) -> bytes:
    return _packet(PacketTypes.DISCONNECT, bytes([code]))


class Packets:
    """Cuts a stream into packets: type, content and size."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, int]]:
        self._buffer += data
        while (end := self._end()) is not None:
            start, stop = end
            packet, self._buffer = self._buffer[:stop], self._buffer[stop:]
            yield packet[0] >> 4, packet[start:], len(packet)

    def _end(self) -> tuple[int, int] | None:
        head = self._buffer[1:5]
        length_bytes = next((n for n, byte in enumerate(head, 1) if byte < 0x80), None)
        if length_bytes is None:
            return None
        length, _ = VariableByteIntegers.decode(head)
        start = 1 + length_bytes
        return (start, start + length) if len(self._buffer) >= start + length else None


def read_publish(packet: bytes, size: int) -> Publish:
    """Read a PUBLISH of QoS 1."""
    topic_end = 2 + int.from_bytes(packet[:2], "big")
    properties = Properties(PacketTypes.PUBLISH)
    _, properties_size = properties.unpack(packet[topic_end + 2 :])
    return Publish(
        topic=packet[2:topic_end].decode(),
        payload=packet[topic_end + 2 + properties_size :],
        packet_id=int.from_bytes(packet[topic_end : topic_end + 2], "big"),
        user_properties=dict(properties.json()["UserProperty"]),
        size=size,
    )


def _packet(kind: int, content: bytes) -> bytes:
    length: bytes = VariableByteIntegers.encode(len(content))
    return bytes([kind << 4]) + length + content
