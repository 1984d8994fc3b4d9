"""Messages that go out together on one MQTT connection, and what the broker says to each of them.

brokers.md, section 10. The engine publishes one by one, each with a task that waits; a batch is put
where the engine looks for what its PUBACKs are about, and one task waits for all of it.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

import msgspec
from zmqtt import PublishProperties, QoS
from zmqtt._internal.packets.codec import encode
from zmqtt._internal.packets.publish import PubAck, Publish
from zmqtt._internal.state import QoS1Flight

from relay.core.errors import Refused, SinkError, Temporary
from relay.sinks.mqtt.connection import LOST, Connection
from relay.sinks.mqtt.errors import OF_MESSAGE, TAKEN, TOO_LARGE, meaning


class Publication(msgspec.Struct, eq=False):
    """One message, and what became of it."""

    topic: str
    body: bytes
    properties: PublishProperties
    found: int | Exception | None = None
    """The reason code with which the broker took it.

    None where that is not known, because another message made the broker end the connection.
    """


class Batch:
    """How many of what was published together are on their way."""

    def __init__(self) -> None:
        self.last: Flight | None = None
        self._flying = 0
        self._landed: asyncio.Future[None] | None = None

    def start(self, flight: "Flight") -> None:
        self.last = flight
        self._flying += 1

    def land(self) -> None:
        self._flying -= 1
        if not self._flying and self._landed is not None and not self._landed.done():
            self._landed.set_result(None)

    async def landed(self) -> None:
        if self._flying:
            self._landed = asyncio.get_running_loop().create_future()
            await self._landed


class Flight(asyncio.Future[PubAck]):
    """One PUBLISH that the broker has not acknowledged, also where nobody waits any more."""

    def __init__(self, publication: Publication, batch: Batch, *, number: int, size: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.publication = publication
        self.batch = batch
        self.number = number
        """In the order of sending, on this connection."""
        self.size = size


class Publisher:
    """Keeps within what a broker takes: `at_once` messages on their way, or fewer."""

    def __init__(self, connection: Connection, *, at_once: int) -> None:
        self._connection = connection
        self._room = asyncio.Semaphore(min(at_once, connection.receive_maximum))
        self._flying: dict[int, Flight] = {}
        """By their numbers; to the broker they are on their way until the PUBACK."""
        self._sent = 0
        self._heard = 0
        """The highest number of those that the broker has acknowledged."""
        self._acks = 0
        self._has_refused = False
        """Whether the broker has refused a message on this connection; some end it over that."""
        connection.when_ended(self._ended)

    async def publish_all(self, publications: Sequence[Publication]) -> None:
        """Return once each has found something.

        Cancelled, it publishes nothing more, and those that wait have found nothing.
        """
        batch, acks, waiting = Batch(), self._acks, True
        try:
            for each in publications:
                await self._room.acquire()
                self._put(each, batch)
            waiting = False
            await batch.landed()
        except asyncio.CancelledError:
            if (waiting and self._acks == acks) or self._is_silent_on(batch):
                # A frozen broker would take the rest later, unasked.
                self._connection.abort()
            raise

    def _put(self, publication: Publication, batch: Batch) -> None:
        if not self._connection.usable:
            publication.found = Temporary(LOST)
            self._room.release()
            return
        state = self._connection.state
        packet_id = state.packet_ids.acquire()
        try:
            packet = _packet(publication, packet_id)
            data = encode(packet, version="5.0")
            self._check_size(len(data))
        except Exception as error:  # noqa: BLE001  one event's fault is not its neighbours'
            publication.found = error
            state.packet_ids.release(packet_id)
            self._room.release()
            return
        self._sent += 1
        flight = Flight(publication, batch, number=self._sent, size=len(data))
        flight.add_done_callback(self._answered)
        state.inflight_qos1[packet_id] = QoS1Flight(packet_id, packet, flight)
        self._flying[flight.number] = flight
        batch.start(flight)
        self._connection.put(data)

    def _check_size(self, size: int) -> None:
        if size > self._connection.largest:
            raise Refused(f"{size} bytes are more than the broker's maximum packet size")

    def _answered(self, done: asyncio.Future[PubAck]) -> None:
        if done.exception() is not None:
            return  # the connection has ended, which is told of all at once
        flight = cast("Flight", done)
        self._acks += 1
        self._heard = max(self._heard, flight.number)
        del self._flying[flight.number]
        code = done.result().reason_code
        self._has_refused |= code not in TAKEN
        self._land(flight, code if code in TAKEN else meaning(code, about_event=True))

    def _ended(self, code: int | None) -> None:
        """Give up what is on its way; the code is that of the broker's DISCONNECT."""
        flights, self._flying = list(self._flying.values()), {}
        largest = max((flight.size for flight in flights), default=0)
        for flight in flights:
            # A DISCONNECT names no packet, but the largest is too large if any is.
            is_blamed = len(flights) == 1 or (code == TOO_LARGE and flight.size == largest)
            if code is None and self._has_refused:
                self._land(flight, None)
            else:
                self._land(flight, _fate(code, is_blamed=is_blamed))

    def _land(self, flight: Flight, found: int | SinkError | None) -> None:
        flight.publication.found = found
        flight.batch.land()
        self._room.release()

    def _is_silent_on(self, batch: Batch) -> bool:
        """Whether neither the last of them is acknowledged, nor anything that followed it."""
        return batch.last is not None and batch.last.number > self._heard


def _packet(publication: Publication, packet_id: int) -> Publish:
    return Publish(
        topic=publication.topic,
        payload=publication.body,
        qos=QoS.AT_LEAST_ONCE,
        retain=False,
        dup=False,
        packet_id=packet_id,
        properties=publication.properties,
    )


def _fate(code: int | None, *, is_blamed: bool) -> SinkError | None:
    """What the end of the connection means to a packet that was on its way."""
    if code is None:
        return Temporary(LOST)
    if code in OF_MESSAGE and not is_blamed:
        return None
    return meaning(code, about_event=code in OF_MESSAGE)
