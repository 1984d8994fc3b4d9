"""Batches of messages on one MQTT connection, each message with its own outcome.

brokers.md, section 10.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from paho.mqtt.properties import Properties

from relay.core import timeouts
from relay.core.errors import Refused, SinkError, Temporary
from relay.sinks.mqtt.connection import LOST, MqttConnection
from relay.sinks.mqtt.errors import OF_MESSAGE, SUCCESS, TOO_LARGE, classify


@dataclass(eq=False, slots=True)
class Publication:
    """One message and its outcome."""

    kind: str
    """Of the event."""
    topic: str
    body: bytes
    properties: Properties
    outcome: int | Exception | None = None
    """Reason code of a PUBACK that confirms.

    None if the broker ended the connection because of another message.
    """
    size: int = 0
    number: int = 0
    """Position among the messages sent on the connection."""
    done: asyncio.Future[None] = field(init=False)


class MqttPublisher:
    """Keeps within the broker's limits, with at most `concurrency` messages in flight."""

    def __init__(self, connection: MqttConnection, *, concurrency: int) -> None:
        self.connection = connection
        self._slots = asyncio.Semaphore(min(concurrency, connection.receive_maximum))
        self._in_flight: dict[int, Publication] = {}
        """By packet identifier, until the PUBACK: also messages that nothing waits for."""
        self._sent = 0
        self._pubacks = 0
        self._acknowledged = 0
        """Highest number with a PUBACK."""
        self._has_refused = False
        """Whether the broker refused a message; some brokers end the connection afterwards."""
        connection.on_puback = self._on_puback
        connection.on_end = self._on_end

    @property
    def is_usable(self) -> bool:
        return self.connection.usable

    async def close(self) -> None:
        self.connection.close()

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Return once each has its outcome; if cancelled, publish nothing more."""
        pubacks, is_queued, last = self._pubacks, False, 0
        try:
            for publication in publications:
                has_waited = self._slots.locked()
                await self._slots.acquire()
                if has_waited:  # with a small receive maximum, a batch takes many round trips
                    timeouts.restart()
                self._send(publication)
                last = self._sent
            is_queued = True
            await asyncio.wait([publication.done for publication in publications])
        except asyncio.CancelledError:
            is_starved = not is_queued and self._pubacks == pubacks
            if is_starved or last > self._acknowledged:
                # A frozen broker would accept the queued messages later, after they were given up.
                self._abort(publications)
            raise

    def _abort(self, late: Sequence[Publication]) -> None:
        """Cut a connection on which the broker is silent; late messages remain without outcome."""
        in_flight = list(self._in_flight.values())
        self.connection.abort()
        for publication in late:
            if publication in in_flight:
                publication.outcome = None

    def _send(self, publication: Publication) -> None:
        publication.done = asyncio.get_running_loop().create_future()
        try:
            publication.size = self._checked_size(publication)
            packet_id = self.connection.publish(
                publication.topic, publication.body, publication.properties
            )
        except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
            self._settle(publication, error)
            return
        self._sent += 1
        publication.number = self._sent
        self._in_flight[packet_id] = publication

    def _checked_size(self, publication: Publication) -> int:
        """Return the size of the packet in bytes."""
        if not self.connection.usable:
            raise Temporary(LOST)
        properties = len(publication.properties.pack())
        remaining = 4 + len(publication.topic.encode()) + properties + len(publication.body)
        size = 1 + _length_bytes(remaining) + remaining
        if size > self.connection.max_packet_bytes:
            raise Refused(
                f"{size} bytes are more than the broker's maximum packet size", unsent=True
            )
        return size

    def _on_puback(self, packet_id: int, code: int) -> None:
        publication = self._in_flight.pop(packet_id)
        self._pubacks += 1
        self._acknowledged = max(self._acknowledged, publication.number)
        is_confirmed = code in SUCCESS
        self._has_refused |= not is_confirmed
        self._settle(publication, code if is_confirmed else classify(code, about_event=True))

    def _on_end(self, code: int | None) -> None:
        lost, self._in_flight = list(self._in_flight.values()), {}
        largest = max((publication.size for publication in lost), default=0)
        for publication in lost:
            # A DISCONNECT names no packet, but the largest is too large if any is.
            is_blamed = len(lost) == 1 or (code == TOO_LARGE and publication.size == largest)
            self._settle(publication, self._loss(code, is_blamed=is_blamed))

    def _loss(self, code: int | None, *, is_blamed: bool) -> SinkError | None:
        """Return the outcome of a message without a PUBACK when the connection ended."""
        if code is None:
            return None if self._has_refused else Temporary(LOST)
        if code in OF_MESSAGE and not is_blamed:
            return None
        return classify(code, about_event=code in OF_MESSAGE)

    def _settle(self, publication: Publication, outcome: int | Exception | None) -> None:
        publication.outcome = outcome
        publication.done.set_result(None)
        self._slots.release()


def _length_bytes(remaining: int) -> int:
    """Return the size of a packet's length field (MQTT 5.0, section 1.5.5)."""
    return max(1, -(-remaining.bit_length() // 7))
